"""Prices and stock of a database reach the filters of every worker without a release."""

import sqlite3
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipelines.cli.main import app
from pipelines.publishing.sync_items import sync
from serving.bundle.load import load_bundle
from serving.bundle.manifest import publish
from serving.bundle.properties import Properties
from serving.bundle.write import write_bundle
from serving.configuration.file import check_configuration
from serving.live import LiveProperties, live_path
from serving.recommend import Recommender
from serving.schemas import Request
from tests.serving.server.running import running
from tests.serving.synthetic_bundle import SyntheticSize, synthetic_parts

KINDS = {"price": "number", "in_stock": "boolean", "brand": "text"}
CHEAP = {"k": 40, "filter": {"where": "price < 5 and in_stock = true"}}


@pytest.fixture
def bundles(tmp_path: Path) -> Path:
    """All 40 items cost 10 and are in stock."""
    (tmp_path / "scratch").mkdir()
    parts = synthetic_parts(tmp_path / "scratch", SyntheticSize())
    values = {"price": [10.0] * 40, "in_stock": [True] * 40, "brand": ["Acme"] * 40}
    parts = replace(parts, properties=Properties.of_values(KINDS, values))
    write_bundle(tmp_path / "bundles", parts, version="v1")
    publish(tmp_path / "bundles", "v1")
    return tmp_path / "bundles"


@pytest.fixture
def products(tmp_path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    database.execute("create table products (item_id, price, in_stock, brand)")
    rows = [(f"item-{n}", 10.0, "true", "Other") for n in range(1, 41)]
    database.executemany("insert into products values (?, ?, ?, ?)", rows)
    return database


def test_a_price_of_a_database_is_filtered_by_on_every_worker(bundles, products, tmp_path) -> None:
    address = f"sqlite:{tmp_path / 'shop.db'}#products"
    with running(bundles, tmp_path / "log") as server:

        def cheap() -> set[str]:
            status, reply = server.get("/v1/recommend", CHEAP)
            assert status == 200, reply
            return {one["item_id"] for one in reply["items"]}

        assert cheap() == set()
        products.execute("update products set price = 3 where item_id in ('item-4', 'item-5')")
        products.execute("update products set in_stock = 'false' where item_id = 'item-5'")
        done = CliRunner().invoke(app, ["items", "sync", str(bundles), address])
        assert done.exit_code == 0, done.output
        assert "40 items read; changed values: in_stock 1, price 2" in " ".join(done.output.split())
        time.sleep(1.5)
        assert [cheap() for _ in range(30)] == [{"item-4"}] * 30


def test_only_changes_are_published_and_the_rest_keeps_its_values(bundles, tmp_path) -> None:
    bundle, file = load_bundle(bundles / "current"), tmp_path / "stock.csv"
    file.write_text("item_id,price,brand\nitem-1,3\nnothing,1\n".replace("item-1,3", "item-1,3,B"))
    found = sync(str(file), bundle)
    assert (found.num_items, found.num_unknown) == (1, 1)
    assert found.changed == {"price": 1}
    assert found.left_out == ("brand",)
    before = live_path(bundle).stat().st_mtime_ns
    assert sync(str(file), bundle).changed == {"price": 0}
    assert live_path(bundle).stat().st_mtime_ns == before
    file.write_text("item_id,in_stock\nitem-2,false\nitem-3,\n")
    assert sync(str(file), bundle).changed == {"in_stock": 2}
    LiveProperties(bundle).refresh()
    expected = [{"price": 3.0, "in_stock": True}, {"price": 10.0, "in_stock": False}]
    rest = {"brand": "Acme"}
    assert [bundle.properties.of(row) for row in (1, 2)] == [one | rest for one in expected]
    assert bundle.properties.of(3) == {"price": 10.0, "brand": "Acme"}
    assert load_bundle(bundles / "current").properties.of(1)["price"] == 10.0


def test_rules_and_filters_that_were_asked_before_see_new_values(bundles, tmp_path) -> None:
    rule = {"name": "dear", "kind": "hide", "where": "price > 100", "surfaces": ["home"]}
    recommender = Recommender(
        load_bundle(bundles / "current"), configuration=check_configuration({"rules": [rule]})
    )

    def listed(**fields: object) -> set[str]:
        reply = recommender.answer(Request.model_validate({"k": 40, **fields}))
        return {one.item_id for one in reply.items}

    assert listed(**CHEAP) == set()
    assert "item-7" in listed()
    (tmp_path / "stock.csv").write_text("item_id,price\nitem-7,101\nitem-8,1\n")
    sync(str(tmp_path / "stock.csv"), recommender.bundle)
    recommender.live.properties.refresh(time.monotonic() + 2)
    assert listed(**CHEAP) == {"item-8"}
    assert "item-7" not in listed()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("item_id,price\nitem-1,cheap\n", "price is a number and one of the values is 'cheap'"),
        (
            "item_id,colour\nitem-1,red\n",
            "none of the numbers, dates and booleans .*: in_stock, price",
        ),
        ("sku,price\nitem-1,3\n", "no column 'item_id'"),
        ("item_id,price\nitem-1,3\nitem-1,4\n", "'item-1' more than once"),
    ],
)
def test_a_bad_source_changes_nothing(bundles, tmp_path, text: str, message: str) -> None:
    bundle, file = load_bundle(bundles / "current"), tmp_path / "stock.csv"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        sync(str(file), bundle)
    assert not live_path(bundle).exists()


def test_a_damaged_file_leaves_the_values(bundles, tmp_path) -> None:
    bundle = load_bundle(bundles / "current")
    (tmp_path / "stock.csv").write_text("item_id,price\nitem-1,3\n")
    sync(str(tmp_path / "stock.csv"), bundle)
    live, path = LiveProperties(bundle), live_path(bundle)
    live.refresh(0.0)
    whole = path.read_bytes()
    for damaged in (whole[:-40], b"", whole[: len(whole) // 2] + bytes(len(whole) // 2)):
        path.write_bytes(damaged)
        live.refresh(time.monotonic() + 10)
        live._next = 0.0
        assert bundle.properties.of(1)["price"] == 3.0
