"""Export of an online store: each event once, whatever is killed, and nobody who was forgotten."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from pipelines.inputs.exported import EXPORTED, list_parts, scan_parts
from pipelines.inputs.online_events import export_events, export_requests, export_store
from serving.online.events import Event
from serving.online.sqlite_store import SqliteStore
from serving.online.store import RequestRecord, new_request_id
from tests.features.test_ids import IDS

DAY_MS = 86_400_000
START_MS = 1_760_000_000_000 - 1_760_000_000_000 % DAY_MS


def event(number: int, user_id: str = "ann", day: int = 0, **fields: object) -> Event:
    received_ms = START_MS + day * DAY_MS + 1_000 * number
    own = {
        "event_id": f"e{number}",
        "item_id": f"item-{number}",
        "event_type": "view",
        "time_ms": received_ms - 500,
    }
    return Event(user_id=user_id, received_ms=received_ms, **{**own, **fields})  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "online")


def read(out: Path) -> pl.DataFrame:
    return pl.concat(pl.read_parquet(path, hive_partitioning=False) for path in list_parts(out))


def test_events_lie_by_day_of_arrival_each_once_with_their_columns(store, tmp_path):
    request_id = new_request_id(START_MS)
    click = event(
        2,
        day=1,
        event_type="click",
        time_ms=START_MS + 5,
        value=2.5,
        request_id=request_id,
        slot=1,
        domain="shop",
        session_id="s1",
    )
    store.add_events([event(1), click, event(3, "bo", day=1)])
    report = export_events(store, tmp_path / "out")
    assert (report.new, report.rows, report.parts, report.removed) == (3, 3, 2, 0)
    names = [str(path.relative_to(tmp_path / "out")) for path in list_parts(tmp_path / "out")]
    assert names == ["date=2025-10-09/part-1-3.parquet", "date=2025-10-10/part-1-3.parquet"]
    rows = read(tmp_path / "out").to_dicts()
    assert [row["event_id"] for row in rows] == ["e1", "e2", "e3"]
    expected = {
        "user_id": "ann",
        "item_id": "item-2",
        "event_type": "click",
        "value": 2.5,
        "domain": "shop",
        "session_id": "s1",
        "request_id": request_id,
        "slot": 0,
        "event_id": "e2",
    }
    assert {name: rows[1][name] for name in expected} == expected
    assert rows[1]["event_time"].timestamp() * 1_000 == START_MS + 5
    assert export_events(store, tmp_path / "out").new == 0
    store.add_events([event(3, "bo", day=1), event(4, day=1)])
    report = export_events(store, tmp_path / "out")
    assert (report.new, report.rows, report.parts) == (1, 4, 3)


def test_ids_of_any_kind_leave_the_store_as_they_came_and_are_forgotten(store, tmp_path):
    out = tmp_path / "out"
    sent = [event(n, one, item_id=one, session_id=one) for n, one in enumerate(IDS)]
    assert store.add_events(sent) == [True] * len(IDS)
    export_events(store, out)
    for column in ("user_id", "item_id", "session_id"):
        assert read(out)[column].to_list() == IDS
    for one in IDS[::2]:
        assert store.forget(one, START_MS + DAY_MS).num_events == 1
    assert export_events(store, out).removed == len(IDS[::2])
    assert read(out)["user_id"].to_list() == IDS[1::2]


def test_who_is_forgotten_leaves_earlier_parts(store, tmp_path):
    out = tmp_path / "out"
    store.add_events([event(1), event(2, "bo"), event(3, day=1), event(4, "ann", day=2)])
    export_events(store, out)
    store.forget("ann", START_MS + 3 * DAY_MS)
    store.add_events([event(5, "ann", day=4)])
    report = export_events(store, out)
    assert (report.new, report.removed, report.rows) == (1, 3, 2)
    assert read(out).select("user_id", "event_id").rows() == [("bo", "e2"), ("ann", "e5")]
    left = [path for path in out.glob("date=*/*") if b"item-1" in path.read_bytes()]
    assert left == []
    # A second time, and of a part that was written for it before.
    store.forget("bo", START_MS + 5 * DAY_MS)
    assert export_events(store, out).removed == 1
    assert read(out)["user_id"].to_list() == ["ann"]
    assert export_events(store, out).removed == 0


def test_kills_lose_and_repeat_nothing(tmp_path):
    """Exports are killed at random moments while events come in; one user is forgotten midway."""
    store = SqliteStore(tmp_path / "online")
    out, rng, sent = tmp_path / "out", random.Random(0), 0
    code = (
        "import sys; from pathlib import Path; from pipelines.inputs import online_events as o; "
        "from serving.online.sqlite_store import SqliteStore; o.EVENTS_PER_PART = 40\n"
        "s = SqliteStore(Path(sys.argv[1])); print('ready', flush=True)\n"
        "while True: o.export_events(s, Path(sys.argv[2]))"
    )
    for attempt in range(6):
        command = [sys.executable, "-c", code, str(tmp_path / "online"), str(out)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        until = time.monotonic() + 0.05 + 0.4 * rng.random()
        while time.monotonic() < until:
            fresh = [event(sent + n, f"user-{n % 3}") for n in range(25)]
            store.add_events(fresh)
            sent += len(fresh)
        if attempt == 3:
            store.forget("user-1", START_MS + 1_000 * sent)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    report = export_events(store, out)
    found = read(out)
    assert report.rows == found.height
    expected = [one.event_id for _, one in store.events_after(0, 1_000_000)]
    assert sorted(found["event_id"].to_list()) == sorted(expected)
    assert {str(path.relative_to(out)) for path in out.glob("date=*/*")} == set(
        json.loads((out / EXPORTED).read_text())["parts"]
    )


def test_served_lists_have_a_row_an_item(store, tmp_path):
    now_ms = START_MS + 10 * DAY_MS
    ids = [new_request_id(START_MS), new_request_id(START_MS + DAY_MS), new_request_id(now_ms)]
    items = [
        {"item_id": "x", "score": 0.25, "source": "ease", "propensity": 0.5},
        {"item_id": "y", "score": 0.125, "source": "popularity"},
    ]
    short = {"request": {"k": 2}, "fallback": "popularity", "degraded": ["late", "no_ranker"]}
    more = [{"experiment": {"name": "blue", "arm": "b"}}, short, {}]
    store.add_requests(
        [
            RequestRecord(
                one,
                int(one[:12], 16),
                user,
                json.dumps({"surface": "home", "bundle": "v1", "items": items, **extra}).encode(),
            )
            for one, user, extra in zip(ids, ("ann", None, "bo"), more, strict=True)
        ]
    )
    out = tmp_path / "out"
    report = export_requests(store, out, now_ms + 1_000)
    # The last list may still have company that is being written.
    assert (report.new, report.rows) == (2, 4)
    rows = read(out / "requests").rows(named=True)
    assert [row["request_id"] for row in rows] == [ids[0]] * 2 + [ids[1]] * 2
    assert [row["slot"] for row in rows] == [0, 1, 0, 1]
    names = ("user_id", "surface", "bundle", "experiment", "arm", "item_id", "score", "source")
    assert tuple(rows[0][name] for name in (*names, "propensity")) == (
        *("ann", "home", "v1", "blue", "b", "x", 0.25, "ease", 0.5),
    )
    assert (rows[0]["request"], rows[2]["request"]) == ("{}", '{"k": 2}')
    assert [row["fallback"] for row in rows] == [None, None, "popularity", "popularity"]
    assert (rows[0]["degraded"], rows[2]["degraded"]) == (None, "late,no_ranker")
    assert rows[2]["user_id"] is rows[2]["experiment"] is rows[3]["propensity"] is None
    store.forget("ann", now_ms)
    report = export_requests(store, out, now_ms + 120_000)
    assert (report.new, report.removed) == (1, 2)
    assert read(out / "requests")["user_id"].to_list() == [None, None, "bo", "bo"]


def test_parts_of_an_older_export_lack_a_column(tmp_path):
    paths = [tmp_path / "old.parquet", tmp_path / "new.parquet"]
    pl.DataFrame({"a": [1]}).write_parquet(paths[0])
    pl.DataFrame({"a": [2], "b": ["x"]}).write_parquet(paths[1])
    for order in (paths, paths[::-1]):
        found = scan_parts(order).sort("a").collect()
        assert found.to_dict(as_series=False) == {"a": [1, 2], "b": [None, "x"]}


def test_bad_folders_are_refused_and_left_alone(store, tmp_path):
    own = tmp_path / "mine" / "date=2025-01-01" / "part-0.parquet"
    own.parent.mkdir(parents=True)
    own.write_bytes(b"mine")
    with pytest.raises(ValueError, match="is no export; name another folder"):
        export_events(store, tmp_path / "mine")
    assert own.read_bytes() == b"mine"
    with pytest.raises(ValueError, match="there is no online store in"):
        export_store(f"sqlite:{tmp_path / 'none'}", tmp_path / "out")
    assert not (tmp_path / "none").exists()
    store.add_events([event(1)])
    export_events(store, tmp_path / "out")
    list_parts(tmp_path / "out")[0].unlink()
    with pytest.raises(ValueError, match=r"part-1-1.parquet is missing"):
        list_parts(tmp_path / "out")
