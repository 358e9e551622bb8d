"""What was shown is no part of histories."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from features.schema import FilterConfig
from tests.features.test_build import START, build

SHOWN = FilterConfig(event_types=("click",), shown_types=("impression",))
ROWS = [
    # user, item, seconds, type, request, slot
    ("ann", "x", 0, "impression", "r1", 0),
    ("ann", "y", 0, "impression", "r1", 1),
    ("ann", "y", 3, "click", "r1", 1),
    ("ann", "never taken", 0, "impression", "r1", 2),
    ("bo", "x", 5, "view", "r2", 0),
    ("bo", "x", 6, "click", "r2", 0),
    ("only looks", "x", 9, "impression", "r3", 0),
]


NAMES = ["user_id", "item_id", "event_time", "event_type", "request_id", "slot"]


def test_what_was_shown_is_no_part_of_a_history(tmp_path: Path) -> None:
    frame = pl.DataFrame(ROWS, schema=NAMES, orient="row")
    _, report = build(tmp_path, frame.with_columns(pl.col("event_time") + START), filters=SHOWN)
    assert report.events == 2
    assert report.filtered == {"shown, no part of histories": 4, "event_type not selected": 1}
    assert report.rows_in == report.events + sum(report.filtered.values())
    items = dict(pl.read_parquet(tmp_path / "out" / "vocabularies" / "items.parquet").rows())
    rows = np.load(tmp_path / "out" / "sequences" / "given" / "item_rows.npy")
    assert sorted(items[row] for row in rows.tolist()) == ["x", "y"]


def test_a_type_is_shown_or_taken_not_both() -> None:
    with pytest.raises(ValueError, match=r"\['view'\] are in event_types and in shown_types"):
        FilterConfig(event_types=("view", "buy"), shown_types=("view",))
