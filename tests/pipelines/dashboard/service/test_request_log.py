"""The request log as counts: whole, appended to, damaged, removed."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pipelines.dashboard.service import request_log
from pipelines.dashboard.service.request_log import (
    LogReader,
    add_up,
    count_records,
    quantiles,
)
from serving.online.sqlite_store import SqliteStore
from tests.pipelines.dashboard.service.online_log import BEGIN_MS, record, write_log

HOUR_MS = 3_600_000


def named(counts, kind, surface=None):
    rows = counts.filter(pl.col("kind") == kind)
    rows = rows if surface is None else rows.filter(pl.col("surface") == surface)
    return dict(
        rows.group_by(pl.col("name").cast(pl.String)).agg(pl.col("count").sum()).iter_rows()
    )


def by_minute(found):
    rows = found.counts.filter(pl.col("kind") == "bundle")
    rows = rows.group_by("minute_ms").agg(pl.col("count").sum()).sort("minute_ms")
    return dict(rows.iter_rows())


def test_records_are_counted():
    records = [
        record(0, BEGIN_MS, timings_ms={"hydrate": 0.25, "total": 4.0}),
        record(1, BEGIN_MS + 1, user_id=None, degraded=["late_source", "new_code"]),
        record(2, BEGIN_MS + 2, fallback="popularity", items=[], bundle=None, surface="search"),
        record(3, BEGIN_MS + 3, experiment={"name": "x", "arm": "b"}),
        record(4, BEGIN_MS + 4, experiment={"name": "x", "arm": "a"}, user_id=None),
    ]
    found = count_records(records).counts
    assert named(found, "bundle", "home") == {"v1": 4}
    assert named(found, "bundle", "search") == {"unknown": 1}
    assert named(found, "code", "search") == {"fallback": 1}
    codes = {"no user": 2, "late_source": 1, "other": 1, "late or failed part": 1}
    assert named(found, "code", "home") == codes
    assert named(found, "source") == {"ease": 8}
    assert named(found, "stage") == {"hydrate": 1, "total": 1}
    assert named(found, "arm") == {"x: a": 1, "x: b": 1}
    # No user's id is kept.
    assert found.columns == ["minute_ms", "surface", "kind", "name", "bucket", "count"]


def test_quantiles_are_within_five_percent_and_memory_follows_minutes():
    times = np.random.default_rng(0).lognormal(1.0, 1.0, 6_000)
    some = [
        record(n, BEGIN_MS + 20 * n, timings_ms={"total": float(t)}) for n, t in enumerate(times)
    ]
    parts = [count_records(some[at : at + 500]) for at in range(0, 6_000, 500)]
    found = add_up(parts).counts
    lists = found.filter(pl.col("kind") == "bundle")
    assert lists.height == 2
    assert lists["count"].sum() == 6_000
    wanted = {"p50": 0.5, "p99": 0.99, "longest": 1.0}
    (row,) = quantiles(found.filter(pl.col("kind") == "stage"), ["name"], wanted).to_dicts()
    assert row["lists"] == 6_000
    for name, q in wanted.items():
        assert row[name] == pytest.approx(np.quantile(times, q), rel=0.05)


def test_a_log_is_read_whole_and_what_is_appended_is_added(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(request_log, "AT_ONCE", 100)
    of = {"degraded": ["empty_history"]}
    # 26 hours, over two files.
    write_log(tmp_path, 1_000, lambda _: of, every_ms=93_600)
    log = LogReader(tmp_path)
    first = log.now(60)
    assert (first.is_reading, first.fault, first.num_lists) == (False, "", 1_000)
    assert first.span == (BEGIN_MS, (BEGIN_MS + 999 * 93_600) // 60_000 * 60_000)
    assert named(first.counts, "source") == {"ease": 2_000}
    assert log.now(60).number == first.number

    records = write_log(tmp_path, 50, lambda _: {}, every_ms=93_600, first=1_000)
    # One that another server writes a little later.
    late = record(5_000, records[-1].time_ms - 30_000)
    store = SqliteStore(tmp_path)
    store.add_requests([late])
    store.close()
    more = log.now(60)
    assert more.num_lists == 1_051
    assert more.number > first.number

    (tmp_path / "requests-2026-01-01.db").unlink()
    assert min(by_minute(log.now(60))) >= BEGIN_MS + 24 * HOUR_MS


def test_the_latest_minute_of_a_busy_hour_is_read_once_more(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(request_log, "AT_ONCE", 64)
    write_log(tmp_path, 300, lambda _: {})
    log = LogReader(tmp_path)
    assert log.now(60).num_lists == 300
    for number in range(300, 420, 21):
        write_log(tmp_path, 21, lambda _: {}, first=number)
        assert log.now(60).num_lists == number + 21
    assert by_minute(log.now(60)) == {
        BEGIN_MS + 60_000 * minute: min(60, 426 - 60 * minute) for minute in range(8)
    }


def test_a_damaged_file_is_said_and_what_was_read_stays(tmp_path: Path):
    write_log(tmp_path, 10, lambda _: {})
    log = LogReader(tmp_path)
    assert log.now(60).num_lists == 10
    (tmp_path / "requests-2026-01-02.db").write_bytes(b"no database at all")
    for found in (log.now(60), LogReader(tmp_path).now(60)):
        assert "requests-2026-01-02.db: it is no SQLite file" in found.fault
        assert found.num_lists == 10
    assert "there is no online store" in LogReader(tmp_path / "none").now(60).fault
