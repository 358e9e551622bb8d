"""Columns of a catalogue: known encodings, missing values, bad input, what is kept."""

import json
from datetime import date
from typing import Any

import numpy as np
import pytest

from recsys.content.columns import (
    NUM_PARTS,
    ColumnEncoder,
    EncodedColumn,
    Kind,
    piecewise,
)


def test_a_number_fills_the_parts_below_it() -> None:
    edges = np.array([0.0, 10.0, 20.0, 40.0])
    numbers = np.array([-5.0, 5.0, 30.0, 99.0])
    expected = [[0, 0, 0], [0.5, 0, 0], [1, 1, 0.5], [1, 1, 1]]
    assert piecewise(numbers, edges).tolist() == expected


def test_parts_hold_equally_many_items_and_near_numbers_are_near() -> None:
    numbers = (np.arange(1, 1001) ** 3).tolist()
    column = EncodedColumn.fit("price", "number", numbers)
    assert len(column.edges) == NUM_PARTS + 1
    encoded = column.encode(numbers)[:, :-1]
    lengths = (encoded**2).sum(1)
    assert lengths.mean() == pytest.approx(1.0, abs=1e-5)
    assert encoded.mean(0) == pytest.approx(np.zeros(NUM_PARTS), abs=1e-5)
    by_distance = np.linalg.norm(encoded - encoded[500], axis=1)[500:]
    assert (np.diff(by_distance) > 0).all(), "the farther, the less alike"


@pytest.mark.parametrize(
    ("kind", "values", "empty"),
    [
        ("number", [1.0, 2.0, 7.5, None], ""),
        ("date", [date(2026, 1, 1), "2026-03-01", "2026-05-01T12:00:00", None], "  "),
        ("category", ["red", "red", "blue", None], ""),
        ("list", ["a|b", ["b", "a"], ("c",), None], []),
        ("vector", [[1.0, 0.0], "[0.0, 1.0]", (0.5, 0.5), None], ""),
    ],
)
def test_a_missing_value_is_a_value_of_its_own(kind: Kind, values: list[Any], empty: Any) -> None:
    column = EncodedColumn.fit("it", kind, values)
    encoded = column.encode([*values, empty])
    assert encoded[:, -1].tolist() == [0, 0, 0, 1, 1]
    assert not encoded[3:, :-1].any()
    assert np.isfinite(encoded).all()


@pytest.mark.parametrize(
    ("kind", "fitted", "given", "message"),
    [
        ("number", [1, 2], ["cheap"], "column it is a number, but value 1 is 'cheap'"),
        ("number", [1, 2], [[1.0]], "is a number"),
        ("number", [1, 2], [float("inf")], "is a number, but value 1 is 'inf'"),
        ("date", ["2026-01-01"], [17], "column it is a date, but value 1 is '17'"),
        ("category", ["a"], [["a"]], "column it is a category"),
        ("vector", [[1.0, 2.0]], [[1.0]], "value 1 has 1 numbers, the others have 2"),
        ("vector", [[1.0, 2.0]], [[1.0, float("nan")]], "holds NaN or infinity"),
        ("vector", [[1.0, 2.0]], ["[1.0, two]"], "is a vector"),
    ],
)
def test_a_value_of_another_type_is_refused(
    kind: Kind, fitted: list[Any], given: list[Any], message: str
) -> None:
    column = EncodedColumn.fit("it", kind, fitted)
    with pytest.raises(ValueError, match="it") as raised:
        column.encode(given)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ([[1.0], [1.0, 2.0]], "vectors of [1, 2] numbers; all must have the same width"),
        ([[], []], "vectors of 0 numbers, allowed are 1 to 4096"),
        ([[1.0, float("nan")]], "holds NaN"),
        (["[1.0, 2.0]", "[1.0]"], "all must have the same width"),
        ([None, None], "vectors of 0 numbers"),
    ],
)
def test_vectors_that_cannot_be_used_are_refused(vectors: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match="column image") as raised:
        EncodedColumn.fit("image", "vector", vectors)
    assert message in str(raised.value)


def test_the_kept_document_encodes_new_items_alike() -> None:
    table: dict[str, list[Any]] = {
        "price": [1.0, 5.0, None],
        "brand": ["a", "a", None],
        "tags": [["x"], ["x", "y"], None],
    }
    kinds: dict[str, Kind] = {"price": "number", "brand": "category", "tags": "list"}
    fitted = (EncodedColumn.fit(name, kind, table[name]) for name, kind in kinds.items())
    encoder = ColumnEncoder(tuple(fitted), weight=0.5)
    encoded = encoder.encode(table, 3)
    assert encoded.shape == (3, encoder.dim)
    assert not encoded[2].any(), "an item of which nothing is known"
    kept = ColumnEncoder.of(json.loads(json.dumps(encoder.document())), 0.5)
    assert kept == encoder
    assert kept.encode(table, 3).tolist() == encoded.tolist()
    without_price = kept.encode({"brand": ["a"]}, 1)[0]
    assert without_price[kept.columns[0].dim - 1] == 0.5
