from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.bundle.load import load_bundle
from serving.bundle.properties import Properties
from serving.filtering.compile import in_categories, in_domain, matching
from serving.filtering.expression import FilterError, parse
from tests.serving.filtering.random_filters import (
    items_of,
    let_through,
    random_where,
    with_properties,
)

NUM_ITEMS = 40


@pytest.fixture
def bundle(released):
    return with_properties(load_bundle(released / "current"))


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


def test_domains_are_a_property_and_no_category_of_the_same_name(bundle):
    assert not in_domain("even", bundle).any()
    domains = Properties.of_values({"domain": "text"}, {"domain": ["even", "x"] * (NUM_ITEMS // 2)})
    bundle = replace(bundle, properties=domains)
    for _ in range(2):
        assert np.flatnonzero(in_domain("even", bundle)).tolist() == list(range(1, 40, 2))
        assert np.flatnonzero(in_categories(["even"], bundle)).tolist() == list(range(2, 41, 2))


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


@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=False))
def test_any_filter_lets_through_what_a_slow_reading_of_it_does(slow_items, rng):
    bundle, items = slow_items
    where = random_where(rng)
    mask = matching(parse(where), bundle)
    ids = {bundle.catalogue.item_ids[row] for row in np.flatnonzero(mask).tolist()}
    assert ids == let_through(where, items)
    assert not mask[0]


@pytest.fixture(scope="module")
def slow_items(released):
    """The bundle, and each item as a plain dictionary."""
    bundle = with_properties(load_bundle(released / "current"))
    return bundle, items_of(bundle)
