"""Tables and queries of databases, named by an address and read as frames.

    postgresql://ann@db.shop/shop#orders
    sqlite:shop.db#select customer as user_id, sku as item_id, bought_at from orders
    duckdb:shop.duckdb#main.orders
    delta:s3://lake/orders#select customer, sku, bought_at from orders
    iceberg:lake/shop.orders
    s3://lake/orders/*.parquet#select customer, sku, bought_at from orders

An address is stored and shown, so it has no password: libpq takes it from PGPASSWORD or ~/.pgpass.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    import polars as pl

DRIVERS = {
    "postgresql": "adbc_driver_postgresql.dbapi",
    "sqlite": "sqlite3",
    "duckdb": "duckdb",
    "delta": "deltalake",
    "iceberg": "pyiceberg.catalog",
}
STORES = {"s3", "gs", "az"}
"""Object stores, whose files Polars reads; it finds the credentials in the environment."""
LAKES = {"delta", "iceberg", *STORES}
"""Tables of a lake, which Polars reads and queries; their packages find the credentials."""
READERS = {".parquet": "scan_parquet", ".csv": "scan_csv", ".jsonl": "scan_ndjson"}
SESSION = ("transaction read only", "time zone 'UTC'", "synchronize_seqscans = off")
"""Settings of PostgreSQL. A scan that starts within a table would give each snapshot an order."""
FETCHED_ROWS = 100_000
FIRST_DAY = "1990"
_HOST = r"(\[[\da-f:]+\]|[^:@/?,\[\]]*)(:\d+)?"
_POSTGRESQL = re.compile(
    rf"postgres(ql)?://([^:@/?]+@)?{_HOST}(,{_HOST})*(/[^@/?]*)?(\?(?!.*password=)[^@]*)?"
)
_PASSWORD = re.compile(r"(://[^\s:@/]*:|password=)(.*@|[^\s&#@]+)")
_PLAIN = re.compile(r"u?int|float|double|bool|(large_)?string$|date|timestamp|list<\w+: string>")
"""Arrow types that are read as they are; others (uuid, numeric, enum, json) are read as texts."""


def is_database(place: str) -> bool:
    """Return True for the address of a database."""
    return place.partition(":")[0] in {"postgres", *DRIVERS} and ":" in place


def is_address(place: object) -> bool:
    """Return True for the address of a database or a store, False for a path."""
    begin = r"sqlite:|duckdb:|delta:|iceberg:|[a-z][a-z0-9+]*://"
    return isinstance(place, str) and re.match(begin, place) is not None


def moved(address: str, move: Callable[[str], str]) -> str:
    """Give the file of an address another path; others stay."""
    kind, _, rest = address.partition(":")
    place, mark, query = rest.partition("#")
    is_file = kind in ("sqlite", "duckdb", "delta") or place.endswith(".json")
    return f"{kind}:{move(place)}{mark}{query}" if is_file and "://" not in place else address


def masked(text: str) -> str:
    """Replace the passwords in addresses."""
    return _PASSWORD.sub(r"\1***@", text)


@dataclass(frozen=True)
class DatabaseTable:
    """A table or the result of a query."""

    kind: str
    place: str
    """URL, or the path of a file."""
    query: str

    @classmethod
    def parse(cls, address: str) -> DatabaseTable:
        """Read an address; errors do not repeat what may be a password."""
        place, _, fragment = address.partition("#")
        kind, _, path = place.partition(":")
        if kind in ("postgres", "postgresql"):
            kind, path = "postgresql", place
            if not _POSTGRESQL.fullmatch(place):
                raise ValueError(
                    "the address of a database is postgresql://USER@HOST:PORT/DATABASE#TABLE, "
                    "without a password: set PGPASSWORD"
                )
        elif kind in STORES:
            path = place
            if "@" in place or Path(place).suffix not in READERS:
                raise ValueError(
                    f"the address of files is {kind}://BUCKET/PATH that ends with one of "
                    f"{', '.join(READERS)}, without a password: set the variables of the store"
                )
        elif kind not in DRIVERS or not path:
            raise ValueError(
                f"{kind}: is no database that can be read; name postgresql://USER@HOST/DATABASE, "
                "sqlite:FILE, duckdb:FILE, delta:FOLDER, iceberg:CATALOG/NAMESPACE.TABLE, or "
                "s3://BUCKET/FILES (also gs, az)"
            )
        query = fragment.strip().rstrip(";")
        if kind in LAKES:
            query = query or _lake_name(path)
        if re.fullmatch(r'[\w.$"]+', query):
            query = f"select * from {query}"
        elif not re.match(r"(?i)(select|with)\s", query):
            raise ValueError(
                f"after # an address of {kind} has a table, or a query that begins with select or "
                f"with, such as {kind}:...#orders"
            )
        return cls(kind, path, query)

    @property
    def name(self) -> str:
        """The table that is read, the first one of a query."""
        found = re.search(r'(?i)\bfrom\s+([\w."]+)', self.query)
        return found[1].rpartition(".")[2].strip('"') if found else "query"

    def read(self, end: str = "") -> pl.DataFrame:
        """Read the rows; ``end`` is put after the query, such as ``limit 10``."""
        return self._select(f"select * from ({self.query}) as t {end}")

    def days(self, time: str) -> list[tuple[str, int, str]]:
        """Return every day of a column of times with its rows and its latest time."""
        day = f'date("{time}")' if self.kind == "sqlite" else f'cast("{time}" as date)'
        found = self._select(
            f'select cast({day} as text), count(*), cast(max("{time}") as text) '
            f'from ({self.query}) as t where "{time}" is not null group by 1 order by 1'
        ).rows()
        if wrong := [day for day, _, _ in found if day is None or day < FIRST_DAY]:
            raise ValueError(
                f"{time} has {wrong[0]} as a day; it must be a date, a timestamp or an ISO text: "
                "convert it in the query"
            )
        return found

    def _select(self, query: str) -> pl.DataFrame:
        if self.kind in STORES:
            return _query_lake(self.kind, self.place, query)
        try:
            driver = import_module(DRIVERS[self.kind])
        except ImportError as error:
            raise ValueError(
                f"{self.kind} needs a driver that is not installed ({error.name}): "
                f"pip install 'recsys-platform[{self.kind.removesuffix('ql')}]'"
            ) from error
        if self.kind in LAKES:
            return _query_lake(self.kind, self.place, query)
        if self.kind != "postgresql" and not Path(self.place).is_file():
            raise ValueError(f"no file {self.place}; check the path after {self.kind}:")
        try:
            with closing(_connect(driver, self.place)) as connection:
                return _fetch(connection, query, self.kind)
        except driver.Error as error:
            text = " ".join(str(error).split())
            if password := os.environ.get("PGPASSWORD"):
                text = text.replace(password, "***")
            raise ValueError(
                f"{self.kind} cannot be read: {masked(text)}; check the address, the query and the "
                "server, then run it again: no part of it was kept"
            ) from None


def _lake_name(place: str) -> str:
    """Return the name of a lake's table in queries: its folder, or its name in the catalog."""
    *folders, name = place.rstrip("/").split("/")
    if Path(name).suffix in READERS:
        name = name.partition(".")[0] if "*" not in name else folders[-1]
    name = folders[-2] if name.endswith(".json") and len(folders) > 1 else name
    return re.sub(r"\W", "_", name.rpartition(".")[2])


def _query_lake(kind: str, place: str, query: str) -> pl.DataFrame:
    """Query files, a Delta table by its folder, or an Iceberg one by metadata or catalog."""
    import polars as pl

    # Polars would warn that its own planner is not installed.
    os.environ.setdefault("POLARS_ICEBERG_PLANNER", "pyiceberg")
    try:
        if kind in STORES:
            # Ids of digits in a CSV stay texts.
            options = {"infer_schema": False} if place.endswith(".csv") else {}
            table = getattr(pl, READERS[Path(place).suffix])(place, **options)
        elif kind == "delta":
            table = pl.scan_delta(place)
        elif place.endswith(".json"):
            table = pl.scan_iceberg(place)
        else:
            catalog, _, name = place.partition("/")
            load = import_module(DRIVERS[kind]).load_catalog
            table = pl.scan_iceberg(load(catalog).load_table(name))
        return pl.SQLContext({_lake_name(place): table}).execute(query, eager=True)
    # Each package, and Polars, has errors of its own.
    except Exception as error:
        text = masked(str(error).strip().partition("\n")[0])
        where = place if kind in STORES else f"{kind}:{place}"
        raise ValueError(
            f"{where} cannot be read: {text}; check the address, and the query, whose table "
            f"is {_lake_name(place)}"
        ) from None


def _connect(driver: Any, place: str) -> Any:
    """Open a database for reading alone."""
    if driver.__name__ == "sqlite3":
        return driver.connect(f"file:{quote(place)}?mode=ro", uri=True)
    if driver.__name__ == "duckdb":
        return driver.connect(place, read_only=True)
    if "connect_timeout" not in place:
        place += f"{'&' if '?' in place else '?'}connect_timeout=30"
    connection = driver.connect(place)
    with connection.cursor() as cursor:
        for setting in SESSION:
            cursor.execute(f"set {setting}")
    return connection


def _fetch(connection: Any, query: str, kind: str) -> pl.DataFrame:
    # Polars is slow to import, and every configuration reads addresses.
    import polars as pl

    def arrow(query: str) -> Any:
        if kind == "duckdb":
            return connection.sql(query).to_arrow_table()
        with connection.cursor() as cursor:
            cursor.execute(query)
            return cursor.fetch_arrow_table()

    if kind == "sqlite":
        return _from_rows(connection.execute(query))
    names = []
    for field in arrow(f"select * from ({query}) as t limit 0").schema:
        name = '"{}"'.format(field.name.replace('"', '""'))
        plain = _PLAIN.match(str(field.type))
        names.append(name if plain else f"cast({name} as text) as {name}")
    return pl.DataFrame(arrow(f"select {', '.join(names)} from ({query}) as t"))


def _from_rows(cursor: Any) -> pl.DataFrame:
    """Read rows of Python values; a column of mixed values becomes texts, one of bytes goes."""
    import polars as pl

    names = [column[0] for column in cursor.description]
    parts = [pl.DataFrame(schema=names)]
    while rows := cursor.fetchmany(FETCHED_ROWS):
        options: dict[str, Any] = {"strict": False, "infer_schema_length": None}
        parts.append(pl.DataFrame(rows, schema=names, orient="row", **options))
    found = pl.concat(parts, how="vertical_relaxed")
    return found.drop(name for name, kind in found.schema.items() if kind == pl.Binary)
