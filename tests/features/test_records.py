"""Sorting and counting of integer records against numpy's plain ways."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from features.ingest import record_dtype
from features.records import RecordFile, partition, stable_order

DTYPE = record_dtype(("time", "sequence", "value"))


def some_records(num: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    records = np.zeros(num, DTYPE)
    for name in ("user", "item", "type", "time", "sequence"):
        records[name] = rng.integers(0, 5, num)
    records["value"] = rng.random(num)
    return records


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=50),
    st.sampled_from([0, 1, 2**30, 2**58, 2**62]),
    st.sampled_from([1, 2**29, 2**57]),
)
def test_stable_order_is_lexsort_at_every_width(
    rows: list[tuple[int, int]], low: int, scale: int
) -> None:
    first = np.array([row[0] for row in rows], np.int64) * scale - low
    second = np.array([row[1] for row in rows], np.int64) * (scale // 2 + 1)
    expected = np.lexsort((second, first))
    assert stable_order([first, second]).tolist() == expected.tolist()


def test_partition_is_a_stable_sort_and_writes_over_an_old_file(tmp_path: Path) -> None:
    records = some_records(1_000, 2)
    (tmp_path / "sorted").write_bytes(b"x" * 100_000)
    target = RecordFile(tmp_path / "sorted", DTYPE)
    counts = np.bincount(records["user"], minlength=7)
    parts = (records[start : start + 90] for start in range(0, 1_000, 90))
    counts[0] = 0
    starts = np.cumsum(counts) - counts
    partition(
        parts,
        target,
        lambda part: part[part["user"] > 0],
        lambda part: part["user"],
        counts,
        starts,
    )
    kept = records[records["user"] > 0]
    order = np.argsort(kept["user"], kind="stable")
    assert (np.concatenate(list(target.slices())) == kept[order]).all()


def test_a_file_cut_short_is_noticed(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "records", DTYPE)
    file.append(some_records(10, 3))
    (tmp_path / "records").write_bytes(b"short")
    with pytest.raises(OSError, match="shorter than the 10 records"):
        file.read(0, 10)
