"""Page ``items``: counts by hand on a few lists, and the page on real files."""

import numpy as np
import polars as pl
import pytest

from pipelines.dashboard.items import COLUMNS, ENTRY, build, count_exposure
from pipelines.dashboard.query import Query
from pipelines.pages.document import Window
from tests.pipelines.dashboard.conftest import HOSTILE_TITLES


@pytest.fixture
def exposure(tmp_path):
    """Three users, the first with two held-out items; lists of three."""
    pl.DataFrame(
        {
            "user_row": [1, 1, 2, 3],
            "item_row": [3, 4, 5, 1],
            "rank_m": [1, None, 2, 3],
            "top_k_m": [[3, 5, 2], [3, 5, 2], [4, 5, -1], [5, 4, 1]],
        },
        schema_overrides={"top_k_m": pl.List(pl.Int64)},
    ).write_parquet(tmp_path / "table.parquet")
    items = pl.DataFrame({"item_row": range(6), "events": [0, 0, 1, 3, 12, 100]})
    return lambda k: count_exposure(items, tmp_path / "table.parquet", "m", k)


def test_places_wishes_and_hits_are_counted_once(exposure):
    two = exposure(2)
    assert two["shown"].to_list() == [0, 0, 0, 1, 2, 3]
    assert two["wanted"].to_list() == [0, 1, 0, 1, 1, 1]
    assert two["hits"].to_list() == [0, 0, 0, 1, 0, 1]
    assert two["bucket"].to_list() == [0, 0, 1, 2, 4, 7]
    assert exposure(3)["shown"].to_list() == [0, 1, 1, 1, 2, 3]
    # Of 6 places item 5 has 3, of 116 events 100; item 1 has neither.
    assert two["ratio"][5] == pytest.approx((3 / 6) / (100 / 116))
    assert two["ratio"][1] is None
    assert exposure(3)["ratio"][1] == np.inf


def test_an_item_is_found_by_its_title_and_coverage_is_that_of_the_table(context):
    window = Window(search=HOSTILE_TITLES[2])
    (row,) = ENTRY.rows["items"](context, Query(), window).rows
    assert row[0].text == HOSTILE_TITLES[2]
    assert row[0].link.page == "why"
    shown = np.array([row[3] for row in all_rows(context)])
    assert f"show {(shown > 0).mean():.0%} of {len(shown)} items" in build(context, Query()).lead


def all_rows(context, **window):
    return ENTRY.rows["items"](context, Query(), Window(length=1000, **window)).rows


def test_the_table_is_ordered_by_every_column(context):
    for column in range(len(COLUMNS)):
        for descending in (False, True):
            rows = all_rows(context, order_by=column, descending=descending)
            values = [getattr(row[column], "text", row[column]) for row in rows]
            numbers = [np.inf if value == "\u221e" else value for value in values]
            known = [value for value in numbers if value is not None]
            assert known == sorted(known, reverse=descending)
