"""Filters against a slow truth: the same expression, evaluated item by item in plain Python."""

from dataclasses import replace
from datetime import date

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.bundle.load import load_bundle
from serving.bundle.properties import Properties
from serving.filtering.compile import in_categories, matching
from serving.filtering.expression import (
    AllOf,
    AnyOf,
    FilterError,
    Membership,
    Missing,
    Not,
    parse,
)

KINDS = {"price": "number", "brand": "text", "tags": "list", "new": "boolean", "since": "date"}
NUM_ITEMS = 40


def values():
    """Every seventh item has nothing at all."""
    rows = [row if row % 7 else None for row in range(1, NUM_ITEMS + 1)]
    return {
        "price": [row and row * 0.5 for row in rows],
        "brand": [row and f"brand {row % 3}" for row in rows],
        "tags": [row and [f"t{row % 4}", f"t{row % 5}"][: row % 3] for row in rows],
        "new": [row and row % 2 == 0 for row in rows],
        "since": [row and date(2026, 1, row % 28 + 1) for row in rows],
    }


@pytest.fixture
def bundle(released):
    known = Properties.of_values(KINDS, values())
    return replace(load_bundle(released / "current"), properties=known)


def found(bundle, where):
    return np.flatnonzero(matching(parse(where), bundle)).tolist()


def test_comparisons_of_numbers(bundle):
    assert found(bundle, "price < 2") == [1, 2, 3]
    assert found(bundle, "price <= 1.5") == [1, 2, 3]
    assert found(bundle, "price >= 19.5") == [39, 40]
    assert found(bundle, "price > 19.5") == [40]
    assert found(bundle, "price = 1.5 or price == 2") == [3, 4]
    assert found(bundle, "price in [1, 1.5, 99]") == [2, 3]
    assert found(bundle, "price != 1 and price <= 2") == [1, 3, 4]


def test_texts_lists_booleans_and_dates(bundle):
    assert found(bundle, "brand = 'brand 1' and price < 5") == [1, 4]
    assert found(bundle, "brand not in ['brand 1', 'brand 2'] and price < 5") == [3, 6, 9]
    assert found(bundle, "brand = 'nobody'") == []
    assert found(bundle, "tags = 't1' and price < 5") == [1, 5]
    assert found(bundle, "tags in ['t1', 't0'] and price <= 5") == [1, 4, 5, 8]
    assert found(bundle, "new = true and price < 2") == [2]
    assert found(bundle, "new != true and price < 2") == [1, 3]
    assert found(bundle, "since >= '2026-01-28'") == [27]
    assert found(bundle, "since in ['2026-01-02', '2026-01-03']") == [1, 2, 29, 30]


def test_a_date_stands_for_its_whole_day(bundle):
    noon = Properties.of_values({"at": "date"}, {"at": ["2026-01-02T12:00:00"] * NUM_ITEMS})
    bundle = replace(bundle, properties=noon)
    for where in ("at = '2026-01-02'", "at <= '2026-01-02'", "at > '2026-01-01'"):
        assert len(found(bundle, where)) == NUM_ITEMS
    for where in ("at != '2026-01-02'", "at > '2026-01-02'", "at < '2026-01-02'"):
        assert found(bundle, where) == []


def test_categories_and_ids_of_the_catalogue(bundle):
    assert found(bundle, "category in ['tens']") == [10, 20, 30, 40]
    assert found(bundle, "category = 'even' and category != 'tens' and price <= 6") == [
        *(2, 4, 6, 8, 12)
    ]
    assert found(bundle, "category = 'nothing has this'") == []
    assert found(bundle, "item_id in ['item-3', 'item-9', 'zz']") == [3, 9]
    assert found(bundle, "item_id != 'item-1' and price <= 1") == [2]
    assert found(bundle, "item_id is missing") == []
    assert np.flatnonzero(in_categories(["tens", "?"], bundle)).tolist() == [10, 20, 30, 40]


def test_missing_values_never_match_and_neither_do_their_opposites(bundle):
    missing = {7, 14, 21, 28, 35}
    for test in ("price < 5", "brand = 'brand 1'", "new = true", "since < '2026-01-05'"):
        yes, no = found(bundle, test), found(bundle, f"not ({test})")
        assert not missing & {*yes, *no}
        assert sorted([*yes, *no]) == sorted({*range(1, 41)} - missing)
        assert not missing & {*found(bundle, f"{test} or not ({test})")}
    assert found(bundle, "price is missing") == sorted(missing)
    assert found(bundle, "not price is not missing") == sorted(missing)
    assert found(bundle, "price is missing or price < 1") == [1, *sorted(missing)]


@pytest.mark.parametrize(
    ("where", "code", "says"),
    [
        (
            "cost < 5",
            "unknown_property",
            "no property 'cost'; they have category, item_id, brand, new, price, since, tags",
        ),
        ("price < 5 and brand > 'a'", "invalid_filter", "character 15: 'brand' is a text"),
        ("price = 'cheap'", "invalid_filter", "'price' is a number and takes numbers without"),
        ("price = true", "invalid_filter", "takes numbers without quotes"),
        ("brand = 5", "invalid_filter", "takes texts between quotes"),
        ("category < 'a'", "invalid_filter", "'category' is a list of texts and takes =, !=, in"),
        ("new = 1", "invalid_filter", "takes true and false"),
        ("new < true", "invalid_filter", "takes =, !=, in and not in"),
        ("since < 2026", "invalid_filter", "takes dates as 'YYYY-MM-DD'"),
        ("since < '2026-02-30'", "invalid_filter", "takes dates as 'YYYY-MM-DD'"),
        ("item_id > 'a'", "invalid_filter", "takes =, !=, in and not in"),
    ],
)
def test_refusal_says_what_the_property_takes(bundle, where, code, says):
    with pytest.raises(FilterError) as error:
        matching(parse(where), bundle)
    assert error.value.code == code
    assert says in str(error.value)


def test_mask_is_kept_by_text_and_is_the_callers_own(bundle):
    first = matching(parse("price < 5"), bundle)
    expected = first.copy()
    first[:] = False
    assert np.array_equal(matching(parse("price < 5"), bundle), expected)
    assert len(bundle.masks) == 1


def truth(node, item):
    """True, False, or None for unknown."""
    if isinstance(node, Not):
        inner = truth(node.part, item)
        return None if inner is None else not inner
    if isinstance(node, AllOf | AnyOf):
        parts = [truth(part, item) for part in node.parts]
        decisive = isinstance(node, AnyOf)
        if decisive in parts:
            return decisive
        return None if None in parts else not decisive
    value = item.get(node.name)
    if isinstance(node, Missing):
        return value is None
    if value is None:
        return None
    value = value if isinstance(value, list) else [value]
    if isinstance(node, Membership):
        return any(one in node.values for one in value)
    return {
        "=": node.value in value,
        "!=": node.value not in value,
        "<": value[0] < node.value,
        "<=": value[0] <= node.value,
        ">": value[0] > node.value,
        ">=": value[0] >= node.value,
    }[node.operator]


names = {
    "price": ["0", "3", "10.5"],
    "brand": ["'brand 0'", "'brand 2'", "'?'"],
    "tags": ["'t0'", "'t3'", "'?'"],
    "category": ["'even'", "'tens'"],
    "since": ["'2026-01-03'", "'2026-01-20'"],
    "new": ["true", "false"],
}


@st.composite
def one_test(draw):
    name = draw(st.sampled_from(sorted(names)))
    value = st.sampled_from(names[name])
    kind = draw(st.sampled_from(["=", "!=", "<", ">=", "in", "not in", "is missing"]))
    if kind == "is missing":
        return f"{name} {kind}"
    if "in" in kind:
        return f"{name} {kind} [{', '.join(draw(st.lists(value, min_size=1, max_size=3)))}]"
    if kind in "<>=" and name not in ("price", "since"):
        kind = "="
    return f"{name} {kind} {draw(value)}"


wheres = st.recursive(
    one_test(),
    lambda inner: st.one_of(
        inner.map(lambda one: f"not ({one})"),
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda p: f"({' '.join(p)})"),
    ),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(wheres)
def test_any_filter_lets_through_what_a_slow_reading_of_it_does(slow_items, where):
    bundle, items = slow_items
    root = parse(where).root
    expected = [row for row, item in enumerate(items, start=1) if truth(root, item) is True]
    assert found(bundle, where) == expected


@pytest.fixture(scope="module")
def slow_items(tmp_path_factory):
    """The bundle, and each item as a plain dictionary."""
    from tests.serving.synthetic_bundle import SyntheticSize, write_synthetic_bundle

    path = write_synthetic_bundle(tmp_path_factory.mktemp("b"), "v1", SyntheticSize())
    known = Properties.of_values(KINDS, values())
    bundle = replace(load_bundle(path), properties=known)
    rows = range(1, NUM_ITEMS + 1)
    return bundle, [
        {**known.of(row), "category": bundle.catalogue.categories_of(row)} for row in rows
    ]
