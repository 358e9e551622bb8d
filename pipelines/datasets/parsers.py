"""Parsers of public data sets: their files to tables, as features/ expects them.

GroupLens allows research use and no redistribution (Harper and Konstan, 2015), so no file of it is
part of this package.
"""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl

Tables = dict[str, pl.DataFrame]
"""``events`` (user_id, item_id, event_type and event_time or sequence_index), ``items`` (item_id,
title and what else is known), and ``users`` if anything is known of them."""
RATINGS = ("user_id", "item_id", "rating", "timestamp")
CLASSICS_BEFORE = 1980
"""Release year that separates the two domains of MovieLens-100K."""


def unix_seconds(column: str) -> pl.Expr:
    """Read integer seconds since 1970 as UTC event times."""
    seconds = pl.from_epoch(pl.col(column).cast(pl.Int64), "s")
    return seconds.cast(pl.Datetime("us", "UTC")).alias("event_time")


GENRES_100K = [
    "unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime",
    "Documentary", "Drama", "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance",
    "Sci-Fi", "Thriller", "War", "Western",
]  # fmt: skip
AGES_1M = {
    "1": "under 18", "18": "18-24", "25": "25-34", "35": "35-44", "45": "45-49", "50": "50-55",
    "56": "56+",
}  # fmt: skip
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
    path: Path, separator: str, *columns: str, encoding: str = "latin-1"
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
    """Make events out of columns of strings."""
    kind, value = pl.lit("rating").alias("event_type"), pl.col("rating").cast(pl.Float64)
    return frame.select("user_id", "item_id", unix_seconds("timestamp"), kind, value=value)


def with_year(items: pl.DataFrame) -> pl.DataFrame:
    """Take the year out of "Title (1995)" and order the title for reading."""
    return items.with_columns(
        pl.col("title").map_elements(readable_title, return_dtype=pl.String),
        pl.col("title").str.extract(r"\((\d{4})\)\s*$").cast(pl.Int64).alias("release_year"),
    )


def movielens_100k(events: pl.DataFrame, items: pl.DataFrame, users: pl.DataFrame) -> Tables:
    """Make the tables: without postcodes, each film in the domain of its time.

    A video shop has its shelf of classics likewise.
    """
    old = (pl.col("release_year") < CLASSICS_BEFORE).fill_null(False)
    domain = pl.when(old).then(pl.lit("classics")).otherwise(pl.lit("recent"))
    return {
        "events": ratings(events),
        "items": items.select("item_id", "title", "categories", "release_year", domain=domain),
        "users": users.select("user_id", pl.col("age").cast(pl.Int64), "gender", "occupation"),
    }


def movielens_100k_official(directory: Path) -> Tables:
    """Parse u.data, u.item and u.user of ml-100k.zip."""
    columns = ("item_id", "title", "release_date", "video_date", "url", *GENRES_100K)
    movies = with_year(read_delimited(directory / "u.item", "|", *columns))
    flags = [pl.when(pl.col(genre) == "1").then(pl.lit(genre)) for genre in GENRES_100K[1:]]
    people = ("user_id", "age", "gender", "occupation", "zip_code")
    return movielens_100k(
        read_delimited(directory / "u.data", "\t", *RATINGS),
        movies.with_columns(categories=pl.concat_list(flags).list.drop_nulls()),
        read_delimited(directory / "u.user", "|", *people, encoding="utf-8"),
    )


def movielens_100k_recbole(directory: Path) -> Tables:
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
        title=pl.coalesce(pl.format("{} ({})", title, year), title),
        categories=genres.list.eval(pl.element().filter(pl.element() != "unknown")),
        release_year=year,
    )
    return movielens_100k(read("inter"), items, read("user"))


def movielens_1m(events: pl.DataFrame, directory: Path) -> Tables:
    """Parse movies.dat, "id::title (year)::genre|genre", and users.dat."""
    movies = read_delimited(directory / "movies.dat", "::", "item_id", "title", "genres")
    people = ("user_id", "gender", "age", "occupation", "zip_code")
    users = read_delimited(directory / "users.dat", "::", *people)
    occupations = {str(code): name for code, name in enumerate(OCCUPATIONS_1M)}
    genres = pl.col("genres").str.split("|").alias("categories")
    return {
        "events": events,
        "items": with_year(movies).select("item_id", "title", genres, "release_year"),
        "users": users.select(
            "user_id",
            pl.col("age").replace_strict(AGES_1M, default=None).alias("age_group"),
            "gender",
            pl.col("occupation").replace_strict(occupations, default=None),
        ),
    }


def movielens_1m_official(directory: Path) -> Tables:
    """Parse ratings.dat, movies.dat and users.dat of ml-1m.zip."""
    events = read_delimited(directory / "ratings.dat", "::", *RATINGS)
    return movielens_1m(ratings(events), directory)


def movielens_1m_sequences(directory: Path) -> Tables:
    """Parse "user item item ..." lines, oldest first: an order without times or ratings."""
    lines = pl.read_csv(
        directory / "sequences_by_time.txt.gz",
        has_header=False,
        new_columns=["line"],
        infer_schema=False,
    )
    words = pl.col("line").str.split(" ")
    events = lines.select(user_id=words.list.first(), item_id=words.list.slice(1))
    events = events.with_columns(sequence_index=pl.int_ranges(pl.col("item_id").list.len()))
    events = events.explode("item_id", "sequence_index")
    return movielens_1m(events.with_columns(event_type=pl.lit("rating")), directory)


def amazon_five_core(directory: Path) -> Tables:
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
        sequence_index="position",
        event_type=pl.lit("review"),
    )
    catalogue = pl.read_parquet(directory / "items.parquet")
    named = bool((catalogue["attributes"].list.len() > 0).any())
    numbered = pl.col("attribute_ids").list.eval(pl.format("attribute {}", pl.element()))
    categories = pl.col("attributes") if named else numbered
    return {
        "events": events,
        "items": catalogue.select(item_id="item", title="tags", categories=categories),
    }
