from datetime import UTC, date, datetime

import polars as pl

from pipelines.publishing.items import MAX_LENGTH, item_properties

KNOWN = {
    "item_row": [1, 2, 3],
    "item_id": ["a", "b", "c"],
    "title": ["A", "B", "C"],
    "categories": [["x"], [], ["y"]],
    "display_text": ["A", "B", "C"],
}


def of(**columns):
    return item_properties(pl.DataFrame({**KNOWN, **columns}, strict=False))


def test_typed_columns_keep_their_kind():
    found, left_out = of(
        release_year=[1995, None, 2001],
        price=[9.5, float("nan"), 0.0],
        new=[True, None, False],
        available_from=[
            datetime(2026, 1, 2, 12, tzinfo=UTC),
            None,
            datetime(1969, 12, 31, tzinfo=UTC),
        ],
        made=[date(2026, 1, 2), None, None],
        brand=["Acme ", "", None],
        tags=[["b", "a", "b"], None, []],
    )
    assert left_out == {}
    assert found.of(1) == {
        "release_year": 1995.0,
        "price": 9.5,
        "new": True,
        "available_from": "2026-01-02T12:00:00+00:00",
        "made": "2026-01-02",
        "brand": "Acme",
        "tags": ["b", "a"],
    }
    assert found.of(2) == found.of(0) == {}
    assert found.of(3)["available_from"] == "1969-12-31"


def test_columns_of_a_csv_file_are_what_all_their_texts_are():
    found, _ = of(
        price=["9.50", "-.5", None],
        new=["true", "False", ""],
        since=["2026-01-02", "2026-01-02 10:30:00", None],
        postcode=["01234", "12345", None],
        mixed=["1", "one", None],
    )
    assert found.kinds == {
        "price": "number",
        "new": "boolean",
        "since": "date",
        "postcode": "text",
        "mixed": "text",
    }
    assert found.of(2) == {
        "price": -0.5,
        "new": False,
        "since": "2026-01-02T10:30:00+00:00",
        "postcode": "12345",
        "mixed": "one",
    }


def test_other_columns_are_left_out_and_the_reason_is_given():
    columns = {
        "empty": ([None, None, None], "it is empty"),
        "blank": (["", " ", None], "it is empty"),
        "story": (["w" * (MAX_LENGTH + 1), "b", "c"], "more than 200 characters"),
        "a.b": ([1, 2, 3], "its name is too long, or has a dot"),
        "struct": ([{"x": 1}, None, None], "is not a kind that filters compare"),
        "nested": ([[["x"]], None, None], "is not a kind that filters compare"),
    }
    found, left_out = of(**{name: column for name, (column, _) in columns.items()})
    assert found.kinds == {}
    for name, (_, why) in columns.items():
        assert why in left_out[name]
