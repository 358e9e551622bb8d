"""Numbers of two versions whose codes are written by hand."""

import numpy as np
import pytest

from pipelines.dashboard.context import Context
from pipelines.dashboard.semantic_id_versions import IdVersions, find_versions
from pipelines.semantic_ids.items import Items, choose_categories
from pipelines.semantic_ids.measure import measure, measure_drift
from pipelines.semantic_ids.table import IdTable, describe_first_codes


@pytest.fixture
def source(ids_context: Context) -> IdVersions:
    return find_versions(ids_context, ids_context.stores.runs()[0])


@pytest.fixture
def items(source: IdVersions) -> Items:
    return source.items()


@pytest.fixture
def tables(source: IdVersions) -> tuple[IdTable, IdTable]:
    before, after = map(source.table, reversed(source.versions))
    return before, after


def test_the_own_version_comes_before_the_one_it_follows(source: IdVersions) -> None:
    assert source.own == source.versions[0] == source.published[0]
    assert len(source.versions) == 2


def test_first_codes_are_sorted_by_size_with_their_purity(
    tables: tuple[IdTable, IdTable], items: Items
) -> None:
    found = describe_first_codes(tables[1], items, 3)
    assert describe_first_codes(tables[1], items, 1) == found[:1]
    # Equal sizes by code: 0 and 1 have three items each.
    assert [(one.code, one.num_items) for one in found] == [(0, 3), (1, 3), (3, 1)]
    first, second, _ = found
    assert (first.category, first.purity) == ("d", pytest.approx(2 / 3))
    # The most popular first, then by row.
    assert second.titles == ("three", "four", "five")


def test_usage_counts_codes_by_level(
    tables: tuple[IdTable, IdTable], items: Items, source: IdVersions
) -> None:
    report = measure(tables[1], items, source.report, title="")
    first, second = report.levels
    assert (first.num_used, first.utilisation, first.num_prefixes) == (3, 0.75, 3)
    assert (second.num_used, second.num_prefixes) == (4, 7)
    # Shares 3/7, 3/7, 1/7.
    assert first.entropy_bits == pytest.approx(1.4488, abs=1e-4)
    assert report.usage == [[3, 3, 1, 0], [3, 2, 1, 1]]
    # Codes 0 (d, d, c), 1 (d, c, d) and 3 (c).
    assert first.purity == pytest.approx(5 / 7)
    assert (report.num_with_id, report.num_items) == (7, 8)


def test_drift_counts_kept_added_and_changed_codes(tables: tuple[IdTable, IdTable]) -> None:
    drift = measure_drift(*tables)
    assert drift.kept.num_items == 6
    assert drift.kept.full == pytest.approx(4 / 6)
    # Item 3 keeps its second code without its first.
    assert drift.kept.per_level == pytest.approx((4 / 6, 5 / 6))
    assert drift.kept.per_prefix == pytest.approx((4 / 6, 4 / 6))
    assert (drift.num_added, drift.num_removed) == (1, 0)
    # Codes 0, 1 and 2.
    assert drift.overlaps == pytest.approx([0.5, 2 / 3, 0])
    assert drift.num_changed == 1


def test_versions_of_other_levels_are_not_compared(tables: tuple[IdTable, IdTable]) -> None:
    before, after = tables
    other = IdTable(**(vars(before) | {"level_sizes": (8, 4)}))
    assert measure_drift(other, after).kept is None


def test_main_category_is_the_commonest_that_still_tells_items_apart() -> None:
    names = ["", "shop", "hair", "combs", "skin", "creams"]
    lists = [[], [1, 2, 3], [1, 2], [4, 1, 0], [1, 4, 5], [1], [0]]
    offsets = np.cumsum([0, *map(len, lists)])
    numbers, used = choose_categories(np.concatenate(lists).astype(np.int64), offsets, names)
    found = [used[number] if number >= 0 else None for number in numbers.tolist()]
    assert found == [None, "hair", "hair", "skin", "skin", "shop", None]
    assert used[-1] == "shop"
    numbers, used = choose_categories(np.array([2, 2, 4]), np.arange(4), names)
    assert [used[number] for number in numbers.tolist()] == ["hair", "hair", "skin"]
    nothing = np.zeros(0, np.int64)
    assert choose_categories(nothing, np.zeros(3, np.int64), names)[0].tolist() == [-1, -1]
