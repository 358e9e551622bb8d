from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.data.filters import FilterError, parse
from serving.bundle.load import load_bundle
from serving.bundle.properties import Properties
from serving.filtering.compile import in_categories, in_domain, matching
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
    ("where", "says"),
    [
        ("cost < 5", "no property 'cost'; they have category, item_id, brand, new, price, since"),
        ("price < 5 and brand > 'a'", "character 15: 'brand' is a text"),
        ("price = 'cheap'", "'price' is a number and takes numbers without"),
        ("brand = 5", "takes texts between quotes"),
        ("category < 'a'", "'category' is a list of texts and takes =, !=, in"),
        ("new = 1", "takes true and false"),
        ("since < '2026-02-30'", "takes dates as 'YYYY-MM-DD'"),
        ("item_id > 'a'", "takes =, !=, in and not in"),
    ],
)
def test_refusal_says_what_the_property_takes(bundle, where, says):
    with pytest.raises(FilterError) as error:
        matching(parse(where), bundle)
    assert error.value.code == ("unknown_property" if "cost" in where else "invalid_filter")
    assert says in str(error.value)


@settings(max_examples=100, deadline=None)
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
