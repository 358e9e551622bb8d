"""Parsers of public data sets: their files to tables, as features/ expects them.

GroupLens allows research use and no redistribution (Harper and Konstan, 2015), so no file of it is
part of this package.
"""

from __future__ import annotations

import gzip
import re
from dataclasses import dataclass
from pathlib import Path

import polars as pl


@dataclass(frozen=True, kw_only=True)
class RawTables:
    """A data set as it goes into build_features.

    ``events`` has user_id, item_id, event_type and event_time or sequence_index; ``items`` has
    item_id, title and what else is known; ``users`` is there where anything is known of them.
    """

    events: pl.DataFrame
    items: pl.DataFrame
    users: pl.DataFrame | None = None

    def write(self, directory: Path) -> dict[str, int]:
        """Write one Parquet file a table; return the rows of each."""
        tables = {"events": self.events, "items": self.items, "users": self.users}
        rows = {}
        for name, table in tables.items():
            if table is not None:
                table.write_parquet(directory / f"{name}.parquet")
                rows[name] = table.height
        return rows


def unix_seconds(column: str) -> pl.Expr:
    """Read integer seconds since 1970 as UTC event times."""
    return (
        (pl.col(column).cast(pl.Int64) * 1_000_000)
        .cast(pl.Datetime("us"))
        .dt.replace_time_zone("UTC")
        .alias("event_time")
    )


GENRES_100K = [
    "unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime",
    "Documentary", "Drama", "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance",
    "Sci-Fi", "Thriller", "War", "Western",
]  # fmt: skip
CLASSICS_BEFORE = 1980
"""Release year that separates the two domains of MovieLens-100K."""
AGES_1M = {
    "1": "under 18",
    "18": "18-24",
    "25": "25-34",
    "35": "35-44",
    "45": "45-49",
    "50": "50-55",
    "56": "56+",
}
OCCUPATIONS_1M = [
    "other", "educator", "artist", "administrator", "college student", "customer service",
    "doctor", "executive", "farmer", "homemaker", "student", "lawyer", "programmer", "retired",
    "sales", "scientist", "self-employed", "engineer", "craftsman", "unemployed", "writer",
]  # fmt: skip

TRAILING_ARTICLE = re.compile(
    r"^(?P<rest>.+), (?P<article>The|A|An|Les|Le|La|L'|Il|Das|Der|Die|El|Los|Las|Lo"
    r"|I|Un|Une|Det|Den)(?= \(|$)"
)


def readable_title(title: str) -> str:
    """Move a trailing article to the front: "Net, The (1995)" -> "The Net (1995)"."""
    found = TRAILING_ARTICLE.match(title)
    if found is None:
        return title
    space = "" if found["article"].endswith("'") else " "
    return f"{found['article']}{space}{found['rest']}{title[found.end() :]}"


def read_delimited(
    path: Path, columns: list[str], *, separator: str, encoding: str
) -> pl.DataFrame:
    """Read a small file with a separator of any length, every column a string."""
    rows = []
    for number, line in enumerate(path.read_text(encoding=encoding).splitlines(), start=1):
        fields = line.split(separator)
        if len(fields) != len(columns):
            raise ValueError(
                f"{path}, line {number}: {len(fields)} fields where {len(columns)} belong "
                f"({', '.join(columns)}); is the file whole?"
            )
        rows.append(fields)
    return pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.String), orient="row")


def ratings(frame: pl.DataFrame) -> pl.DataFrame:
    """Events out of user_id, item_id, rating, timestamp columns of strings."""
    return frame.select(
        "user_id",
        "item_id",
        unix_seconds("timestamp"),
        pl.lit("rating").alias("event_type"),
        pl.col("rating").cast(pl.Float64).alias("value"),
    )


def with_year(items: pl.DataFrame) -> pl.DataFrame:
    """Take the year out of "Title (1995)" and order the title for reading."""
    return items.with_columns(
        pl.col("title").map_elements(readable_title, return_dtype=pl.String),
        pl.col("title").str.extract(r"\((\d{4})\)\s*$").cast(pl.Int64).alias("release_year"),
    )


def with_domain(items: pl.DataFrame) -> pl.DataFrame:
    """Assign each film the domain of its time, as a video shop has its shelf of classics."""
    old = pl.col("release_year") < CLASSICS_BEFORE
    domain = pl.when(old.fill_null(False)).then(pl.lit("classics")).otherwise(pl.lit("recent"))
    return items.with_columns(domain.alias("domain"))


def movielens_100k_official(directory: Path) -> RawTables:
    """Parse u.data, u.item and u.user of ml-100k.zip."""
    columns = ["user_id", "item_id", "rating", "timestamp"]
    events = read_delimited(directory / "u.data", columns, separator="\t", encoding="utf-8")
    columns = ["item_id", "title", "release_date", "video_date", "url", *GENRES_100K]
    movies = read_delimited(directory / "u.item", columns, separator="|", encoding="latin-1")
    flags = [
        pl.when(pl.col(genre) == "1").then(pl.lit(genre))
        for genre in GENRES_100K
        if genre != "unknown"
    ]
    items = with_year(movies).select(
        "item_id",
        "title",
        pl.concat_list(flags).list.drop_nulls().alias("categories"),
        "release_year",
    )
    columns = ["user_id", "age", "gender", "occupation", "zip_code"]
    users = read_delimited(directory / "u.user", columns, separator="|", encoding="utf-8")
    return RawTables(events=ratings(events), items=with_domain(items), users=demographics(users))


def demographics(users: pl.DataFrame) -> pl.DataFrame:
    """Keep the columns of a person, without the postcode."""
    return users.select("user_id", pl.col("age").cast(pl.Int64), "gender", "occupation")


def movielens_100k_recbole(directory: Path) -> RawTables:
    """Parse the atomic files of the recbole wheel: tab separated, "name:type" headers."""

    def read(suffix: str) -> pl.DataFrame:
        frame = pl.read_csv(
            directory / f"ml-100k.{suffix}", separator="\t", quote_char=None, infer_schema=False
        )
        return frame.rename(lambda name: name.partition(":")[0])

    # One film of the 1,682 has no name, year or genre: "unknown", "unkonwn", "unknown".
    year = pl.col("release_year").cast(pl.Int64, strict=False)
    title = pl.col("movie_title").map_elements(readable_title, return_dtype=pl.String)
    genres = pl.col("class").str.split(" ")
    items = read("item").select(
        "item_id",
        pl.coalesce(pl.format("{} ({})", title, year), title).alias("title"),
        genres.list.eval(pl.element().filter(pl.element() != "unknown")).alias("categories"),
        year.alias("release_year"),
    )
    users = demographics(read("user"))
    return RawTables(events=ratings(read("inter")), items=with_domain(items), users=users)


def movies_dat(path: Path) -> pl.DataFrame:
    """Parse "id::title (year)::genre|genre"."""
    columns = ["item_id", "title", "genres"]
    movies = read_delimited(path, columns, separator="::", encoding="latin-1")
    return with_year(movies).select(
        "item_id", "title", pl.col("genres").str.split("|").alias("categories"), "release_year"
    )


def users_dat(path: Path) -> pl.DataFrame:
    """Parse "id::gender::age code::occupation code::postcode"."""
    columns = ["user_id", "gender", "age", "occupation", "zip_code"]
    users = read_delimited(path, columns, separator="::", encoding="latin-1")
    occupations = {str(code): name for code, name in enumerate(OCCUPATIONS_1M)}
    return users.select(
        "user_id",
        pl.col("age").replace_strict(AGES_1M, default=None).alias("age_group"),
        "gender",
        pl.col("occupation").replace_strict(occupations, default=None),
    )


def movielens_1m_official(directory: Path) -> RawTables:
    """Parse ratings.dat, movies.dat and users.dat of ml-1m.zip."""
    columns = ["user_id", "item_id", "rating", "timestamp"]
    path = directory / "ratings.dat"
    return RawTables(
        events=ratings(read_delimited(path, columns, separator="::", encoding="latin-1")),
        items=movies_dat(directory / "movies.dat"),
        users=users_dat(directory / "users.dat"),
    )


def movielens_1m_sequences(directory: Path) -> RawTables:
    """Parse "user item item ..." lines, oldest first: an order without times or ratings."""
    path = directory / "sequences_by_time.txt.gz"
    users: list[str] = []
    items: list[str] = []
    places: list[int] = []
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            user, *movies = line.split()
            users += [user] * len(movies)
            items += movies
            places += range(len(movies))
    events = pl.DataFrame(
        {"user_id": users, "item_id": items, "sequence_index": places},
        schema_overrides={"sequence_index": pl.Int64},
    )
    return RawTables(
        events=events.with_columns(pl.lit("rating").alias("event_type")),
        items=movies_dat(directory / "movies.dat"),
        users=users_dat(directory / "users.dat"),
    )


def amazon_five_core(directory: Path) -> RawTables:
    """Parse interactions.parquet and items.parquet.

    ``position`` is the literature's order. Times, where there are any, have the resolution of a
    day, so within a day the order is the files', not the buyers'. Attribute ids replace names
    if no item has its names.
    """
    interactions = pl.read_parquet(directory / "interactions.parquet")
    times = [unix_seconds("timestamp")] if "timestamp" in interactions.columns else []
    events = interactions.select(
        pl.col("user").alias("user_id"),
        pl.col("item").alias("item_id"),
        *times,
        pl.col("position").alias("sequence_index"),
        pl.lit("review").alias("event_type"),
    )
    catalogue = pl.read_parquet(directory / "items.parquet")
    named = bool((catalogue["attributes"].list.len() > 0).any())
    numbered = pl.col("attribute_ids").list.eval(pl.format("attribute {}", pl.element()))
    items = catalogue.select(
        pl.col("item").alias("item_id"),
        pl.col("tags").alias("title"),
        (pl.col("attributes") if named else numbered).alias("categories"),
    )
    return RawTables(events=events, items=items)
