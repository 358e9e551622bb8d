"""Events and items in SQLite, DuckDB and a real PostgreSQL; what a run reads of them."""

import re
import sqlite3
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path

import duckdb
import polars as pl
import pytest
from typer.testing import CliRunner

from features.build import build_features
from features.reading.databases import DatabaseTable
from pipelines.cli.main import app
from pipelines.datasets.init_file import write_config
from pipelines.inputs.snapshots import with_snapshots
from pipelines.operations.forget import forget_users
from pipelines.partitions.ingest import ingest
from pipelines.presets.resolve import resolve
from pipelines.stages.build_features import features_config
from recsys.data.durable import digest_of_file
from tests.pipelines.inputs.postgresql_server import INITDB, postgresql_server

START = datetime(2026, 1, 1)  # noqa: DTZ001
ORDERS = pl.DataFrame({
    "customer": [f"u{n % 6}" for n in range(60)], "sku": [f"p{n * 7 % 10}" for n in range(60)],
    "bought_at": [START + timedelta(hours=n) for n in range(60)],
})  # fmt: skip
PRODUCTS = pl.DataFrame([(f"p{n}", f"Tea {n}") for n in range(10)], ["sku", "name"], orient="row")
Run = Callable[..., None]


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    if INITDB is None:
        pytest.skip("no PostgreSQL: apt-get install --no-install-recommends postgresql")
    with postgresql_server() as address:
        yield address


@pytest.fixture(params=["sqlite", "duckdb", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Run]:
    """Address of a database with orders and products, and a function that runs statements."""
    kind, path = request.param, tmp_path / "shop.db"
    address = f"{kind}:{path}" if kind != "postgresql" else request.getfixturevalue("postgresql")

    def run(*statements: str) -> None:
        driver = import_module("adbc_driver_postgresql.dbapi") if kind == "postgresql" else None
        opened = {"sqlite": sqlite3.connect, "duckdb": duckdb.connect}.get(kind)
        connection = opened(path) if opened else driver.connect(address)
        cursor = connection.cursor()
        for statement in statements:
            cursor.execute(statement)
        connection.commit()
        cursor.close()
        connection.close()

    orders = ", ".join(str((user, item, str(moment))) for user, item, moment in ORDERS.rows())
    time = "text" if kind == "sqlite" else "timestamp"
    run(
        "drop table if exists orders",
        "drop table if exists products",
        f"create table orders (customer text, sku text, bought_at {time})",
        "create table products (sku text, name text)",
        f"insert into orders values {orders}",
        f"insert into products values {', '.join(map(str, PRODUCTS.rows()))}",
    )
    return address, run


def features_of(config_file: Path, folder: Path) -> pl.DataFrame:
    build_features(features_config(with_snapshots(resolve(config_file))), folder)
    return pl.read_parquet(folder / "events")


def test_a_database_gives_the_features_of_the_files(
    database: tuple[str, Run], tmp_path: Path
) -> None:
    address, _ = database
    ORDERS.write_parquet(tmp_path / "orders.parquet")
    PRODUCTS.write_parquet(tmp_path / "products.parquet")
    files = [str(tmp_path / name) for name in ("products.parquet", "orders.parquet")]
    found = [write_config(files, tmp_path / "files.toml", force=False)]
    query = "#with all_of as (select * from products) select * from all_of;"
    places = [f"{address}{query}", f"{address}#orders"]
    found.append(write_config(places, tmp_path / "shop.toml", force=False))
    assert found[0]["events"].columns == found[1]["events"].columns
    read = [features_of(tmp_path / f"{n}.toml", tmp_path / n) for n in ("files", "shop")]
    assert read[0].equals(read[1])


def test_a_run_keeps_what_it_read(
    database: tuple[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, run = database
    monkeypatch.chdir(tmp_path)
    write_config([f"{address}#orders"], Path("shop.toml"), force=False)
    command = ["run", "shop.toml", "--until", "build_features"]
    said = CliRunner().invoke(app, command).output
    assert "60 rows of" in said
    kept = tmp_path / "runs/shop/snapshots/events.parquet"
    before = digest_of_file(kept)
    assert "1 skipped" in CliRunner().invoke(app, command).output
    run("delete from orders where customer = 'u1'")
    command[1] = "runs/shop"
    assert "1 skipped" in CliRunner().invoke(app, command).output
    assert digest_of_file(kept) == before
    command[1] = "shop.toml"
    assert "50 rows of" in CliRunner().invoke(app, command).output
    report = forget_users(resolve(Path("shop.toml")), ["u2"], 1)
    assert not kept.exists()
    assert report.held[0].path == f"{address}#orders"


def test_days_are_read_once_and_again_when_they_grow(
    database: tuple[str, Run], tmp_path: Path
) -> None:
    address, run = database
    write_config([f"{address}#orders"], tmp_path / "shop.toml", force=False)
    text = (tmp_path / "shop.toml").read_text().replace("events =", "partitions =")
    (tmp_path / "shop.toml").write_text(f"{text}\n".replace("runs/shop", f"{tmp_path}/run"))
    config = resolve(tmp_path / "shop.toml")
    first = ingest(config)
    assert (first.new, first.rows) == (["2026-01-01", "2026-01-02", "2026-01-03"], 60)
    assert ingest(config).unchanged == 3
    run(
        "insert into orders values ('u9', 'p1', '2026-01-02 23:59:59')",
        "insert into orders values ('u9', 'p1', '2026-01-04 00:00:00')",
    )
    second = ingest(config)
    assert (second.new, second.corrected) == (["2026-01-04"], ["2026-01-02"])
    assert (second.unchanged, second.rows) == (2, 26)


def test_types_of_postgresql_are_values_that_files_have(postgresql: str) -> None:
    query = (
        "select 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid u, 1.50::numeric(10,2) price, "
        "'{\"a\":1}'::jsonb j, array['a','b'] tags, interval '1 day' i, 7::int8 n, "
        "'2026-01-01 10:00+02'::timestamptz t"
    )
    row = DatabaseTable.parse(f"{postgresql}#{query}").read().row(0, named=True)
    assert row["u"] == "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
    assert (row["price"], row["tags"], row["n"]) == ("1.50", ["a", "b"], 7)
    assert row["t"].isoformat() == "2026-01-01T08:00:00+00:00"


def test_mixed_values_of_sqlite_are_texts(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.execute("create table t (a, b, c)")
        connection.execute("insert into t values (1, x'ff', null), ('x', x'fe', 2.5), (3, null, 1)")
    found = DatabaseTable.parse(f"sqlite:{tmp_path / 'shop.db'}#t").read()
    assert found.to_dict(as_series=False) == {"a": ["1", "x", "3"], "c": [None, 2.5, 1.0]}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("nothing_there", "nothing_there"),
        ("select * from orders where 1 = 0", "has no rows"),
        ("drop table orders", "a query that begins with select"),
    ],
)
def test_queries_that_cannot_be_used_are_explained(
    database: tuple[str, Run], asked: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "shop.toml").write_text(f"workspace = '{tmp_path}/run'\n[data]\nitems = 'i.csv'\n")
    place = f'data.events="{database[0]}#{asked}"'

    def take() -> None:
        with_snapshots(resolve(tmp_path / "shop.toml", assignments=[place]))

    with pytest.raises(ValueError, match="events") as caught:
        take()
    assert words in str(caught.value)
    assert not list(tmp_path.glob("run/snapshots/*"))


def test_a_server_that_goes_away_leaves_the_earlier_snapshot(
    postgresql: str, tmp_path: Path
) -> None:
    (tmp_path / "shop.toml").write_text(f"workspace = '{tmp_path}/run'\n")

    def take(query: str) -> None:
        place = f'data.events="{postgresql}#{query}"'
        with_snapshots(resolve(tmp_path / "shop.toml", assignments=[place]))

    take("select 'ann' as user_id")
    kept = tmp_path / "run/snapshots/events.parquet"
    before = digest_of_file(kept)
    with pytest.raises(ValueError, match="no part of it was kept"):
        take("select n, case n when 9000 then pg_terminate_backend(pg_backend_pid()) end "
             "from generate_series(1, 100000) as g(n)")  # fmt: skip
    assert digest_of_file(kept) == before


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://shop:{}@db/shop#orders",
        "postgresql://shop:{}#x@db:5432/shop#orders",
        "postgresql://db/shop?user=a&password={}#orders",
        "mysql://shop:{}@db/shop#orders",
        "postgresql://shop:{} y@db/shop#orders",
    ],
)
def test_a_password_is_refused_and_neither_shown_nor_kept(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place = address.format("geheim")
    Path("shop.toml").write_text(f'[data]\nevents = "{place}"\n')
    for command in (
        ["run", "shop.toml"],
        ["run", "--preset", "auto", "--set", f"data.events={place}", "--set", "workspace=w"],
        ["data", "init", place, "--out", "other.toml"],
    ):
        found = CliRunner().invoke(app, command)
        said = f"{found.output}{found.exception}"
        assert found.exit_code == 2
        assert "geheim" not in said
        assert re.search("without a password|is no database", said)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert all("geheim" not in path.read_text() for path in written if path.name != "shop.toml")


def test_a_missing_driver_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "adbc_driver_postgresql.dbapi", None)
    with pytest.raises(ValueError, match=r"pip install 'recsys-platform\[postgres\]'"):
        DatabaseTable.parse("postgresql://ann@db/shop#orders").read()


@pytest.fixture(params=["delta", "iceberg"])
def lake(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, str]:
    """Addresses of the orders, and of the products."""
    tables = {"orders": ORDERS, "products": PRODUCTS}
    monkeypatch.chdir(tmp_path)
    if request.param == "delta":
        pytest.importorskip("deltalake")
        for name, frame in tables.items():
            frame.write_delta(tmp_path / "lake" / name)
        return f"delta:{tmp_path}/lake/orders", f"delta:{tmp_path}/lake/products"
    # Read once, at the import.
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", f"file://{tmp_path}")
    catalogs = pytest.importorskip("pyiceberg.catalog")
    catalog = catalogs.load_catalog("lake")
    catalog.create_namespace("shop")
    for name, frame in tables.items():
        catalog.create_table(f"shop.{name}", frame.to_arrow().schema).append(frame.to_arrow())
    metadata = catalog.load_table("shop.products").metadata_location.removeprefix("file://")
    return "iceberg:lake/shop.orders", f"iceberg:{metadata}"


def test_tables_of_a_lake_are_found_queried_and_read_by_day(lake, tmp_path: Path) -> None:
    orders, products = lake
    found = write_config([*lake], tmp_path / "shop.toml", force=True)
    assert found["events"].columns["item_id"] == "sku"
    config = with_snapshots(resolve(tmp_path / "shop.toml"))
    assert pl.read_parquet(config.data.events).sort("bought_at").equals(ORDERS)
    assert pl.read_parquet(config.data.items).sort("sku")["name"].to_list() == sorted(
        PRODUCTS["name"]
    )
    query = f"{orders}#select customer as who from orders where sku = 'p0'"
    assert DatabaseTable.parse(query).read("limit 2").columns == ["who"]
    assert len(DatabaseTable.parse(f"{products}#select sku from products").read()) == len(PRODUCTS)
    days = DatabaseTable.parse(orders).days("bought_at")
    assert [(day, rows) for day, rows, _ in days] == [
        ("2026-01-01", 24), ("2026-01-02", 24), ("2026-01-03", 12)
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"cannot be read: .*nothing.*whose table is orders"):
        DatabaseTable.parse(f"{orders}#select nothing from orders").read()
    gone = orders.replace("orders", "gone")
    with pytest.raises(ValueError, match="gone cannot be read"):
        DatabaseTable.parse(gone).read()
