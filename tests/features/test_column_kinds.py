"""What a column of a catalogue holds, by its type and, where it is text, by its texts."""

from datetime import date

import polars as pl
import pytest

from features.tables import can_be_encoded, can_be_feature, kind_of_column


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pl.Series("x", [1, None, 3]), "number"),
        (pl.Series("x", ["1.5", "", "-3e2", None]), "number"),
        (pl.Series("x", [date(2026, 1, 1)]), "date"),
        (pl.Series("x", ["2026-01-01", "2026-01-02T10:00:00Z"]), "date"),
        (pl.Series("x", [True, False]), "category"),
        (pl.Series("x", ["red", "red", "blue", "blue"]), "category"),
        (pl.Series("x", ["a|b", "c"]), "list"),
        (pl.Series("x", [["a"], ["b", "c"]]), "list"),
        (pl.Series("x", [[1, 2], [3]]), "list"),
        (pl.Series("x", [[0.5, 1.0], None]), "vector"),
        (pl.Series("x", [[0.5, 1.0]], dtype=pl.Array(pl.Float32, 2)), "vector"),
        (pl.Series("x", ["[0.5, 1]", None]), "vector"),
    ],
)
def test_the_kind_of_a_column(column: pl.Series, kind: str) -> None:
    assert kind_of_column(column) == kind


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pl.Series("sku", ["a1", "b2", "c3"]), "sku has 3 different texts in 3 items"),
        (pl.Series("meta", [{"a": 1}]), "meta is Struct"),
        (pl.Series("raw", [b"1"]), "raw is Binary"),
    ],
)
def test_what_is_no_kind_is_refused(column: pl.Series, message: str) -> None:
    assert not can_be_encoded(column)
    with pytest.raises(ValueError, match=r"content\.columns") as raised:
        kind_of_column(column)
    assert message in str(raised.value)


def test_columns_that_say_one_thing_or_another_thing_of_each_are_not_listed() -> None:
    assert not can_be_encoded(pl.Series("country", ["fr", "fr", None]))
    assert can_be_encoded(pl.Series("price", [1.0, 2.0]))
    assert not can_be_feature(pl.Series("street", ["a", "b", "c", "d"]))
    assert can_be_feature(pl.Series("gender", ["m", "f", None, "m"]))
    assert not can_be_feature(pl.Series("tags", [["a"], ["a"]]))
