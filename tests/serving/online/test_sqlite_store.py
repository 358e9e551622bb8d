"""The store in SQLite: what is its own beside the contract, and files that are full or damaged."""

import hashlib
import os
import resource
import sqlite3
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from features.forget_list import KEYS
from serving.online import sqlite_requests
from serving.online.sqlite_files import SqliteFile
from serving.online.sqlite_store import SqliteStore
from serving.online.store import Forgotten, StoreError
from tests.serving.nobody import as_nobody
from tests.serving.online.test_contract import DAY, T0, event, items_of, record

PAGE = 4_096


@pytest.fixture
def store(tmp_path):
    store = SqliteStore(tmp_path, timeout_ms=100)
    yield store
    store.close()


def filled(folder, num_events=500):
    store = SqliteStore(folder)
    store.add_events([event(n) for n in range(num_events)])
    store.add_requests([record(1)])
    store.close()
    return folder / "events.db"


def altered(path, at, data):
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def rewritten(path, pragma):
    database = sqlite3.connect(path)
    database.execute(f"PRAGMA {pragma}")
    database.close()


DAMAGES = {
    "another version": (lambda path: rewritten(path, "user_version = 99"), "version 99.*--store"),
    "another program's": (lambda path: rewritten(path, "application_id = 7"), "application id 7"),
    "empty": (lambda path: os.truncate(path, 0), "no SQLite file.*never deleted"),
    "text": (lambda path: path.write_text("user,item\n" * 500), "no SQLite file.*never deleted"),
    "cut off": (lambda path: os.truncate(path, 4 * PAGE), "damaged.*never changed or deleted"),
    "cut in a page": (lambda path: os.truncate(path, 5 * PAGE + 7), "damaged.*put it aside"),
    "a wrong schema": (lambda path: altered(path, 100, b"\xff" * 900), "damaged.*restore a copy"),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("readonly", [False, True])
def test_a_damaged_or_foreign_file_is_refused_at_start_and_left_as_it_is(
    tmp_path, damage, readonly
):
    path = filled(tmp_path)
    damaged, message = DAMAGES[damage]
    damaged(path)
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(StoreError, match=f"{path}.*{message}"):
            SqliteStore(tmp_path, readonly=readonly)
    assert path.read_bytes() == before


def test_a_damaged_day_fails_its_lists_and_no_other_days(tmp_path, store):
    store.add_requests([record(1), record(2, DAY)])
    store.close()
    (day, _) = sorted(tmp_path.glob("requests-*.db"))
    day.write_bytes(b"?" * 9_000)
    with pytest.raises(StoreError, match=f"{day}.*no SQLite file"):
        store.request(record(1).request_id)
    with pytest.raises(StoreError, match=f"{day}.*no SQLite file"):
        store.add_requests([record(3)])
    assert store.request(record(2, DAY).request_id) == record(2, DAY)
    assert store.add_events([event(1)]) == [True]
    store.remove_old(0, T0 + DAY)
    assert not day.exists()


def test_lists_of_a_day_that_ends_while_they_are_read_are_none(tmp_path, monkeypatch):
    filled(tmp_path)
    reader, asked = SqliteStore(tmp_path, readonly=True), record(1)
    assert reader.request(asked.request_id) == asked
    day = next(tmp_path.glob("requests-*.db"))

    def fail(file, query, values=()):
        if ends:
            day.unlink()
        raise StoreError("it cannot be opened")

    monkeypatch.setattr(SqliteFile, "rows", fail)
    ends = False
    with pytest.raises(StoreError, match="it cannot be opened"):
        reader.request(asked.request_id)
    ends = True
    assert reader.request(asked.request_id) is None
    assert reader.requests_between(0, 1 << 47, 9) == []


def test_a_folder_without_permission_is_said_with_what_to_do(tmp_path):
    tmp_path.chmod(0o555)
    for parent in tmp_path.parents:
        # Every process of the tests has a folder of its own in between.
        if parent == Path(tempfile.gettempdir()):
            break
        parent.chmod(0o755)
    said = as_nobody(lambda: SqliteStore(tmp_path / "online"))
    assert f"{tmp_path}/online: this user may not open it; let them, or name another" in said
    said = as_nobody(lambda: SqliteStore(tmp_path))
    assert "let this user write to its folder, or name another store" in said
    tmp_path.chmod(0o755)
    filled(tmp_path)
    said = as_nobody(lambda: SqliteStore(tmp_path))
    assert "let this user write to its folder, or name another store" in said
    (tmp_path / "events.db").chmod(0o600)
    said = as_nobody(lambda: SqliteStore(tmp_path, readonly=True))
    assert "this user may not open it; let them, or name another store" in said
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=f"{tmp_path}/file/online.*Not a directory"):
        SqliteStore(tmp_path / "file" / "online")


def fill(store, acknowledged):
    for start in range(0, 100_000, 50):
        batch = [event(n) for n in range(start, start + 50)]
        store.add_events(batch)
        acknowledged += batch


def test_a_full_disk_fails_what_does_not_fit_and_nothing_before(tmp_path, store):
    acknowledged = []
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    try:
        with pytest.raises(StoreError, match=r"disk is full"):
            fill(store, acknowledged)
        # Reading goes on while writing fails.
        assert len(store.visitor("ann", 100_000).events) == len(acknowledged)
        with pytest.raises(StoreError):
            store.add_events([event(n) for n in range(200_000, 202_000)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(acknowledged) > 100
    assert [found for _, found in store.events_after(0, 100_000)] == acknowledged
    # What failed was not stored in part: all of it is new once there is room.
    retried = [event(n) for n in range(len(acknowledged), len(acknowledged) + 50)]
    assert store.add_events(retried) == [True] * 50
    other = SqliteStore(tmp_path, readonly=True)
    assert [found for _, found in other.events_after(0, 100_000)] == acknowledged + retried
    other.close()


def test_a_writer_waits_for_another_and_then_says_so_while_readers_go_on(tmp_path, store):
    store.add_events([event(1)])
    other = sqlite3.connect(tmp_path / "events.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="another process is writing to it for too long"):
        store.add_events([event(2)])
    assert items_of(store.visitor("ann", 5)) == ["i1"]
    other.execute("ROLLBACK")
    other.close()
    assert store.add_events([event(2)]) == [True]


def test_nobody_is_forgotten_between_two_attempts_to_store_a_batch(tmp_path, store):
    """A batch with an event that is there already is stored event by event."""
    other, begun, said = SqliteStore(tmp_path, timeout_ms=20), [], []
    store.add_events([event(1, "bob")])

    def forget(statement):
        """Called before each statement is run."""
        begun.append(statement)
        attempted = any(one.startswith("INSERT") for one in begun) and "COMMIT" not in begun[1:]
        if attempted and statement.startswith(("ROLLBACK", "BEGIN")):
            try:
                said.append(other.forget("ann", T0 + 10))
            except StoreError as error:
                said.append(str(error))

    with store._events.transaction() as database:
        database.set_trace_callback(forget)
    store.add_events([event(2), event(1, "bob")])
    with store._events.transaction() as database:
        database.set_trace_callback(None)
    assert said
    assert [one for one in said if "another process is writing" not in str(one)] == []
    assert other.forget("ann", T0 + 10) == Forgotten(1, 0)
    assert items_of(store.visitor("ann", 9)) == []
    other.close()


def test_what_is_acknowledged_is_on_disk_and_a_list_is_never_half_there(store):
    """A commit waits for the disk (2, FULL) in events.db; lists may lose the latest (1, NORMAL)."""
    store.add_requests([record(1)])
    ((_, lists),) = store._requests._files.values()
    for file, level in ((store._events, 2), (lists, 1)):
        with file.transaction() as database:
            assert database.execute("PRAGMA synchronous").fetchone() == (level,)
            assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_store_of_an_earlier_version_keeps_whom_it_forgot_and_gets_a_key(tmp_path):
    """Its entries are SHA-256 of the id without a key."""
    path = filled(tmp_path)
    (tmp_path / KEYS).unlink()
    database = sqlite3.connect(path)
    database.execute("DROP INDEX hidden_items")
    row = (hashlib.sha256(b"-7").hexdigest(), T0 + 5)
    database.execute("INSERT INTO forgotten VALUES (?, ?)", row)
    database.execute("UPDATE state SET last_forgotten_ms = ?", row[1:])
    database.commit()
    database.close()
    reader = SqliteStore(tmp_path, readonly=True)
    assert reader.visitor("-7", 1).forgotten_ms == T0 + 5
    assert reader.hidden_items() == (0, [])
    store = SqliteStore(tmp_path)
    assert store.add_events([event(5, "-7"), event(6, "-7")]) == [False, True]
    store.forget("ann", T0 + 9)
    # The reader was opened before there was a key.
    assert reader.visitor("ann", 1).forgotten_ms == T0 + 9
    assert [store.forgotten().moment(user) for user in ("-7", "ann", "bob")] == [
        T0 + 5,
        T0 + 9,
        None,
    ]
    reader.close()
    store.close()


def test_a_store_whose_key_is_gone_is_refused_until_it_is_back(tmp_path, store):
    store.forget("4711", T0)
    key = (tmp_path / KEYS).read_bytes()
    assert (tmp_path / KEYS).stat().st_mode & 0o777 == 0o600
    (tmp_path / KEYS).write_bytes(b"0" * 64)
    for readonly in (False, True):
        with pytest.raises(StoreError, match=f"under the key [0-9a-f]{{8}}, which is .*{KEYS}"):
            SqliteStore(tmp_path, readonly=readonly)
    # Every line is a key.
    (tmp_path / KEYS).write_bytes(b"0" * 64 + b"\n" + key)
    found = SqliteStore(tmp_path)
    assert found.visitor("4711", 1).forgotten_ms == T0
    found.close()


def test_two_threads_that_need_a_day_open_its_file_once(tmp_path, store, monkeypatch):
    store.add_requests([record(1)])
    store.close()
    opened, both = [], threading.Barrier(2)

    class Slow(SqliteFile):
        def __init__(self, *arguments, **more):
            opened.append(self)
            # Only without a lock the other one comes here too.
            with suppress(threading.BrokenBarrierError):
                both.wait(0.2)
            super().__init__(*arguments, **more)

    monkeypatch.setattr(sqlite_requests, "SqliteFile", Slow)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(store.request, [record(1).request_id] * 2))
    assert found == [record(1)] * 2
    assert len(opened) == 1


def opened(folder, barrier, replies):
    barrier.wait()
    store = SqliteStore(folder)
    replies.put(sum(store.add_events([event(n) for n in range(20)])))
    store.close()
