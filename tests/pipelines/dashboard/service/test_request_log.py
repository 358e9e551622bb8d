"""The request log as columns: whole, appended to, damaged, removed."""

from pathlib import Path

from pipelines.dashboard.service import request_log
from pipelines.dashboard.service.columns import CODES, columns_of, has_code
from pipelines.dashboard.service.request_log import RequestLog
from serving.online.sqlite_store import SqliteStore
from serving.online.store import RequestRecord
from tests.pipelines.dashboard.service.online_log import BEGIN_MS, click, record, write_log

HOUR_MS = 3_600_000


def test_records_become_columns():
    found = columns_of(
        [
            record(0, BEGIN_MS, timings_ms={"hydrate": 0.25, "total": 4.0}),
            record(1, BEGIN_MS + 1, user_id=None, degraded=["late_source", "new_code"]),
            record(2, BEGIN_MS + 2, fallback="popular", items=[], bundle=None, surface="search"),
            record(3, BEGIN_MS + 3, experiment={"name": "x", "arm": "b"}),
            record(4, BEGIN_MS + 4, experiment={"name": "x", "arm": "a"}, user_id=None),
        ]
    )
    lists = found.lists
    assert lists["time_ms"].to_list() == [BEGIN_MS + number for number in range(5)]
    assert lists["bundle"].to_list() == ["v1", "v1", "unknown", "v1", "v1"]
    assert lists["fallback"].to_list() == [None, None, "popular", None, None]
    assert lists["named_user"].to_list() == [True, False, True, True, False]
    assert lists["num_items"].to_list() == [2, 2, 0, 2, 2]
    assert lists["total_ms"].to_list() == [4.0, None, None, None, None]
    assert lists["hydrate_ms"].to_list() == [0.25, None, None, None, None]
    assert lists["rank_ms"].to_list() == [None] * 5
    codes = lists.select(has_code(code).sum().alias(code) for code in CODES).row(0, named=True)
    assert {code for code, count in codes.items() if count} == {"late_source", "other"}
    assert found.sources.select("source", "items").rows() == [("ease", 8)]
    ids, users, *arms = found.arms.get_columns()
    assert ids.to_list() == [record(n, BEGIN_MS + n).request_id for n in (3, 4)]
    assert [one.to_list() for one in arms] == [["x", "x"], ["b", "a"], [BEGIN_MS + 3, BEGIN_MS + 4]]
    # Users stay apart, but their ids are not kept.
    assert users.is_null().to_list() == [False, True]
    assert "u3" not in users.to_list()


def test_a_record_that_is_none_is_counted_and_the_rest_is_read():
    bad = [b"{", b"[]", b'{"unix_ms": "soon"}', b'{"items": 1}', b"\xff", b""]
    records = [RequestRecord(f"{n:032x}", n, None, document) for n, document in enumerate(bad)]
    found = columns_of([record(0, BEGIN_MS), *records, record(1, BEGIN_MS + 1)])
    assert found.lists["time_ms"].to_list() == [BEGIN_MS, BEGIN_MS + 1]
    assert found.num_unreadable == len(bad)
    assert columns_of([]).lists.is_empty()


def test_a_log_is_read_whole_and_what_is_appended_is_added(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(request_log, "LISTS_AT_ONCE", 100)
    of = {"degraded": ["empty_history"]}
    # 26 hours, over two files.
    write_log(tmp_path, 1_000, lambda _: of, every_ms=93_600)
    log = RequestLog(tmp_path)
    first = log.now(60)
    assert not first.is_reading
    assert not first.fault
    expected = [BEGIN_MS + number * 93_600 for number in range(1_000)]
    assert first.columns.lists["time_ms"].to_list() == expected
    assert first.columns.sources["items"].sum() == 2_000
    assert log.now(60).number == first.number

    records = write_log(tmp_path, 50, lambda _: {}, every_ms=93_600, first=1_000)
    # One that another server writes a little later.
    late = record(5_000, records[-1].time_ms - 30_000)
    store = SqliteStore(tmp_path)
    store.add_requests([late])
    store.add_events([click(1, records[-1], 500)])
    store.close()
    more = log.now(60)
    assert more.columns.lists.height == 1_051
    assert late.time_ms in more.columns.lists["time_ms"].to_list()
    assert more.events.rows() == [(records[-1].request_id, records[-1].time_ms + 500, "click")]
    assert more.number > first.number

    (tmp_path / "requests-2026-01-01.db").unlink()
    left = log.now(60).columns.lists
    assert left["time_ms"].min() == min(one for one in expected if one >= BEGIN_MS + 24 * HOUR_MS)


def test_the_latest_minute_of_a_busy_hour_is_read_once_more(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(request_log, "LISTS_AT_ONCE", 64)
    write_log(tmp_path, 300, lambda _: {})
    log = RequestLog(tmp_path)
    assert log.now(60).columns.lists.height == 300
    for number in range(300, 420, 7):
        write_log(tmp_path, 7, lambda _: {}, first=number)
        times = log.now(60).columns.lists["time_ms"]
        assert times.to_list() == [BEGIN_MS + 1_000 * place for place in range(number + 7)]


def test_of_a_long_log_the_newest_lists_are_kept(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(request_log, "LISTS_AT_ONCE", 50)
    monkeypatch.setattr(request_log, "MAX_LISTS", 300)
    # 100 lists an hour, from 10 hours over two days.
    begin_ms = BEGIN_MS + 19 * HOUR_MS
    records = write_log(tmp_path, 1_000, lambda _: {}, begin_ms=begin_ms, every_ms=36_000)
    store = SqliteStore(tmp_path)
    store.add_events([click(1, records[0], 500), click(2, records[-1], 500)])
    store.close()
    log = RequestLog(tmp_path)
    times = [one.time_ms for one in records]

    def check(found, end):
        kept = found.columns.lists["time_ms"].to_list()
        assert 300 <= len(kept) <= 400
        assert kept == times[end - len(kept) : end]
        assert (found.is_cut, found.since_ms) == (True, kept[0])
        assert found.columns.sources["items"].sum() == 2 * len(kept)
        assert records[0].request_id not in found.events["request_id"].to_list()

    first = log.now(60)
    check(first, 1_000)
    assert first.events["request_id"].to_list() == [records[-1].request_id]
    more = write_log(tmp_path, 250, lambda _: {}, begin_ms=begin_ms, every_ms=36_000, first=1_000)
    times += [one.time_ms for one in more]
    check(log.now(60), 1_250)


def test_a_damaged_file_is_said_and_what_was_read_stays(tmp_path: Path):
    write_log(tmp_path, 10, lambda _: {})
    log = RequestLog(tmp_path)
    assert log.now(60).columns.lists.height == 10
    (tmp_path / "requests-2026-01-02.db").write_bytes(b"no database at all")
    found = log.now(60)
    assert "requests-2026-01-02.db: it is no SQLite file" in found.fault
    assert found.columns.lists.height == 10
    anew = RequestLog(tmp_path).now(60)
    assert "requests-2026-01-02.db" in anew.fault
    assert anew.columns.lists.height == 10


def test_a_folder_without_a_store_is_said(tmp_path: Path):
    assert "there is no online store" in RequestLog(tmp_path / "none").now(60).fault
