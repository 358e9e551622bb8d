"""Page ``items``: counts by hand on a few lists, and the page on real files."""

import tracemalloc

import numpy as np
import polars as pl
import pytest

from pipelines.dashboard.data.answers import Answers
from pipelines.dashboard.exposure import NAMES, count_exposure
from pipelines.dashboard.items import ENTRY, build, read_shown, wilson
from pipelines.dashboard.query import Query
from pipelines.dashboard.workspaces.run import Run
from pipelines.pages.document import Section, Table, Window
from tests.pipelines.dashboard.conftest import HOSTILE_TITLES
from tests.pipelines.dashboard.documents import block_of, dashboard

EVENTS = np.array([0, 0, 1, 3, 12, 100])


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
    context = dashboard()
    run = Run(key="k", name="r", kind="workspace", status="complete", time=None, path=tmp_path)
    found = Answers(tmp_path / "table.parquet", ("m",), None, "")
    return lambda k: count_exposure(context, run, found, "m", k, EVENTS)


def test_places_wishes_and_hits_are_counted_once(exposure):
    two = exposure(2)
    assert two.shown.tolist() == [0, 0, 0, 1, 2, 3]
    assert two.wanted.tolist() == [0, 1, 0, 1, 1, 1]
    assert two.hits.tolist() == [0, 0, 0, 1, 0, 1]
    assert exposure(3).shown.tolist() == [0, 1, 1, 1, 2, 3]
    assert two.coverage == 3 / 5
    by_bucket = dict(zip(NAMES, two.by_bucket(two.shown).tolist(), strict=True))
    assert by_bucket == {**dict.fromkeys(NAMES, 0), "2-4": 1, "10-19": 2, "100 or more": 3}
    # Of 6 places item 5 has 3, of 116 events 100.
    assert two.ratio[5] == pytest.approx((3 / 6) / (100 / 116))
    assert two.mean_events(two.shown) == pytest.approx((3 + 2 * 12 + 3 * 100) / 6)


def test_counts_of_a_large_catalogue_take_the_memory_of_the_lists(tmp_path):
    num_items = 2_000_000
    table = {
        "user_row": [1, 2],
        "item_row": [3, num_items - 1],
        "rank_m": [1, 20],
        "top_k_m": [[3, 4], [*range(5, 24), num_items - 1]],
    }
    pl.DataFrame(table).write_parquet(tmp_path / "table.parquet")
    context = dashboard()
    run = Run(key="k", name="r", kind="workspace", status="complete", time=None, path=tmp_path)
    found = Answers(tmp_path / "table.parquet", ("m",), None, "")
    num_events = np.zeros(num_items, np.int64)
    tracemalloc.start()
    counted = count_exposure(context, run, found, "m", 20, num_events)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # A few vectors of all items, and no table of 20 places by all items.
    assert peak < 8 * num_events.nbytes
    assert np.flatnonzero(counted.shown).tolist() == [3, 4, *range(5, 24), num_items - 1]
    assert np.flatnonzero(counted.hits).tolist() == [3, num_items - 1]
    assert count_exposure(context, run, found, "m", 19, num_events).hits.sum() == 1


def test_gini_agrees_with_its_definition(exposure):
    counts = exposure(3).shown[1:]
    slow = np.abs(counts[:, None] - counts[None]).mean() / (2 * counts.mean())
    assert exposure(3).gini == pytest.approx(slow)


def test_wilsons_interval_is_the_published_one():
    low, high = wilson(0, 10)
    assert (low, high) == (pytest.approx(0.0, abs=1e-12), pytest.approx(0.2775, abs=1e-4))
    low, high = wilson(15, 50)
    assert (low, high) == (pytest.approx(0.1910, abs=1e-4), pytest.approx(0.4375, abs=1e-4))


def test_the_page_shows_an_item_by_its_title(context):
    shown = read_shown(context, Query())
    row = shown.catalogue.titles.index_of(HOSTILE_TITLES[2])
    page = build(context, Query.of(item=shown.catalogue.item_id(row)))
    section = page.blocks[0]
    assert isinstance(section, Section)
    assert section.title == HOSTILE_TITLES[2]
    exposure = shown.exposure(shown.model)
    assert block_of(page, Table, "bias-table").rows[0][4:] == [
        exposure.coverage,
        exposure.gini,
        exposure.top_share,
    ]


@pytest.mark.parametrize("column", range(7))
@pytest.mark.parametrize("descending", [False, True])
def test_the_table_is_ordered_by_every_column(context, column, descending):
    window = Window(length=1000, order_by=column, descending=descending)
    rows = ENTRY.rows["items"](context, Query(), window)
    values = [getattr(row[column], "text", row[column]) for row in rows.rows]
    numbers = [float("inf") if value == "\u221e" else value for value in values]
    numbers = [value for value in numbers if value is not None]
    assert numbers == sorted(numbers, reverse=descending)
    assert len(rows.rows) == rows.total == rows.found
