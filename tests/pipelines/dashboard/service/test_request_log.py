"""The request log as counts by day: whole, appended to, damaged, removed."""

import numpy as np
import polars as pl
import pytest

from pipelines.dashboard.service import request_log
from pipelines.dashboard.service.request_log import (
    LogReader,
    add_up,
    count_records,
    named,
    quantiles,
)
from serving.online.sqlite_store import SqliteStore
from tests.pipelines.dashboard.service.online_log import BEGIN_MS, record, write_log


def test_records_are_counted():
    records = [
        record(0, BEGIN_MS, timings_ms={"hydrate": 0.25, "total": 4.0}),
        record(1, BEGIN_MS + 1, degraded=["late_source", "failed_stage", "new_code"]),
        record(2, BEGIN_MS + 2, fallback="popularity", items=[], bundle=None),
    ]
    found, num_unreadable = count_records(records)
    assert num_unreadable == 0
    assert named(found, "bundle") == {"v1": 2, "unknown": 1}
    assert named(found, "code") == {"late_source": 1, "failed_stage": 1, "new_code": 1}
    assert [named(found, kind).total() for kind in ("late", "fallback", "time")] == [1, 1, 1]
    assert named(found, "source") == {"ease": 4}
    # No user's id is kept.
    assert found.columns == ["kind", "name", "bucket", "count"]


def test_quantiles_are_within_five_percent_and_memory_follows_days():
    times = np.random.default_rng(0).lognormal(1.0, 1.0, 6_000)
    some = [
        record(n, BEGIN_MS + 20 * n, timings_ms={"total": float(t)}) for n, t in enumerate(times)
    ]
    parts = [count_records(some[at : at + 500])[0] for at in range(0, 6_000, 500)]
    found = add_up(parts)
    lists = found.filter(pl.col("kind") == "bundle")
    assert lists.height == 1
    assert lists["count"].sum() == 6_000
    wanted = {"p50": 0.5, "p99": 0.99, "longest": 1.0}
    for name, value in quantiles(found, wanted).items():
        assert value == pytest.approx(np.quantile(times, wanted[name]), rel=0.05)


def test_a_log_is_read_whole_and_what_is_appended_is_added(tmp_path, monkeypatch):
    monkeypatch.setattr(request_log, "AT_ONCE", 64)
    of = {"degraded": ["empty_history"]}
    # 26 hours, over two files.
    write_log(tmp_path, 1_000, lambda _: of, every_ms=93_600)
    log = LogReader(tmp_path)
    first = log.now(60)
    assert (first.is_reading, first.fault, first.num_lists) == (False, "", 1_000)
    assert list(first.days) == ["2026-01-02", "2026-01-01"]
    assert log.now(60) is first

    # One a second: the latest minute is read once more each time.
    records = write_log(tmp_path, 100, lambda _: {}, begin_ms=BEGIN_MS + 93_600_000)
    late = record(5_000, records[-1].time_ms - 30_000)
    store = SqliteStore(tmp_path)
    store.add_requests([late])
    store.close()
    assert log.now(60).num_lists == 1_101

    (tmp_path / "requests-2026-01-01.db").unlink()
    assert list(log.now(60).days) == ["2026-01-02"]


def test_a_damaged_file_is_said_and_what_was_read_stays(tmp_path):
    write_log(tmp_path, 10, lambda _: {})
    log = LogReader(tmp_path)
    assert log.now(60).num_lists == 10
    (tmp_path / "requests-2026-01-02.db").write_bytes(b"no database at all")
    for found in (log.now(60), LogReader(tmp_path).now(60)):
        assert "requests-2026-01-02.db: it is no SQLite file" in found.fault
        assert found.num_lists == 10
    assert "there is no online store" in LogReader(tmp_path / "none").now(60).fault
