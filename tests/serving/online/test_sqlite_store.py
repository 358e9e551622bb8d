"""The store in SQLite: what is its own beside the contract, and files that are full or damaged."""

import hashlib
import multiprocessing
import os
import resource
import shutil
import sqlite3
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from features.forget_list import KEYS
from serving.online import sqlite_requests
from serving.online.opening import open_store
from serving.online.sqlite_files import SqliteFile
from serving.online.sqlite_store import SqliteStore
from serving.online.store import Forgotten, ItemState, StoreError
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


def test_a_damaged_page_fails_what_reads_it_and_nothing_else(tmp_path):
    path = filled(tmp_path, 5_000)
    store = SqliteStore(tmp_path)
    database = sqlite3.connect(path)
    query = "SELECT rootpage FROM sqlite_master WHERE name = 'histories'"
    ((root,),) = database.execute(query)
    database.close()
    altered(path, (root - 1) * PAGE, b"\xff" * PAGE)
    with pytest.raises(StoreError, match="damaged"):
        store.visitor("ann", 10)
    assert store.items() == (0, {})
    assert store.request(record(1).request_id) == record(1)
    store.close()


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


def as_nobody(action):
    """Run an action in a child without root's rights; return its error's message."""
    spawned = multiprocessing.get_context("fork")
    receive, send = spawned.Pipe(duplex=False)

    def run():
        if os.geteuid() == 0:
            os.setuid(65534)
        try:
            send.send(action())
        except StoreError as error:
            send.send(str(error))

    child = spawned.Process(target=run)
    child.start()
    child.join()
    return receive.recv()


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


def test_a_readonly_store_needs_its_files_and_writes_nothing(tmp_path):
    with pytest.raises(StoreError, match=r"events\.db.*No such file"):
        SqliteStore(tmp_path, readonly=True)
    assert list(tmp_path.iterdir()) == []
    filled(tmp_path, 5)
    reader = SqliteStore(tmp_path, readonly=True)
    assert len(reader.visitor("ann", 9).events) == 5
    for write in (
        lambda: reader.add_events([event(9)]),
        lambda: reader.add_requests([record(9)]),
        lambda: reader.change_items({"i": ItemState()}),
        lambda: reader.forget("ann", T0),
    ):
        with pytest.raises(StoreError, match="cannot be written; let this user write"):
            write()
    assert len(reader.visitor("ann", 9).events) == 5
    reader.close()


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


def test_a_day_that_another_server_removed_is_begun_again(tmp_path, store):
    other = SqliteStore(tmp_path)
    store.add_requests([record(1)])
    other.remove_old(0, T0 + DAY)
    store.add_requests([record(2)])
    assert store.requests_between(0, T0 + DAY, 9) == [record(2)]
    assert other.requests_between(0, T0 + DAY, 9) == [record(2)]
    other.close()


def test_a_clock_that_was_set_back_loses_nothing(store):
    later, earlier = [event(n) for n in range(100, 103)], [event(n) for n in range(3)]
    assert store.add_events(later) == [True] * 3
    assert store.add_events(earlier) == [True] * 3
    assert [found for _, found in store.events_after(0, 9)] == later + earlier
    assert items_of(store.visitor("ann", 9)) == ["i0", "i1", "i2", "i100", "i101", "i102"]
    records = [record(2, 2 * DAY), record(1), record(0, -DAY)]
    for each in records:
        store.add_requests([each])
    assert store.requests_between(0, T0 + 9 * DAY, 9) == records[::-1]
    store.remove_old(T0 + 50, T0)
    assert items_of(store.visitor("ann", 9)) == ["i100", "i101", "i102"]


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


def test_hidden_items_are_read_without_the_items_that_are_described(tmp_path, store):
    described = {f"i{n}": ItemState(properties={"title": "x" * 50}) for n in range(3_000)}
    store.change_items({**described, "i7": ItemState(hidden=True)})
    steps = []
    with store._events.transaction() as database:
        database.set_progress_handler(lambda: steps.append(1) and 0, 1)
    assert store.hidden_items() == (1, ["i7"])
    assert len(steps) < 300


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


def test_servers_that_start_at_once_share_one_file(tmp_path):
    spawned = multiprocessing.get_context("fork")
    barrier, replies = spawned.Barrier(4), spawned.Queue()
    servers = [
        spawned.Process(target=opened, args=(tmp_path / "new", barrier, replies)) for _ in range(4)
    ]
    for server in servers:
        server.start()
    assert sum(replies.get(timeout=60) for _ in servers) == 20
    for server in servers:
        server.join()
    # SQLite leaves its log where the last two connections were closed at once.
    left = {path.name for path in (tmp_path / "new").iterdir()}
    assert left - {"events.db-wal", "events.db-shm"} == {"events.db", KEYS}


def test_a_process_forks_while_its_threads_write(tmp_path):
    store = SqliteStore(tmp_path)

    def write(start):
        return [store.add_events([event(n)]) for n in range(start, start + 100)]

    with ThreadPoolExecutor(3) as pool:
        written = [pool.submit(write, start) for start in (0, 1_000, 2_000)]
        children = []
        for number in range(8):
            child = os.fork()
            if child == 0:
                added = store.add_events([event(number, "child")])
                os._exit(0 if added == [True] and store.visitor("ann", 5).events else 1)
            children.append(child)
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
        assert all(new == [True] for each in written for new in each.result())
    assert len(store.visitor("ann", 1_000).events) == 300
    assert len(store.visitor("child", 1_000).events) == 8
    store.close()


def test_a_copy_of_the_files_while_they_are_written_is_a_whole_store(tmp_path, store):
    """What a power cut leaves: the files as they are, without the memory of their processes."""
    folder = tmp_path / "copies"
    for turn in range(5):
        store.add_events([event(n) for n in range(turn * 40, turn * 40 + 40)])
        copy = folder / str(turn)
        copy.mkdir(parents=True)
        for name in ("events.db", "events.db-wal"):
            shutil.copy(tmp_path / name, copy / name)
        found = SqliteStore(copy)
        assert len(found.visitor("ann", 1_000).events) == turn * 40 + 40
        found.close()


def test_an_address_opens_its_store_or_none(tmp_path):
    assert open_store("none") is None
    store = open_store(f"sqlite:{tmp_path}/a/b c?#%")
    store.add_events([event(1)])
    reader = open_store(f"sqlite:{tmp_path}/a/b c?#%", readonly=True)
    assert items_of(reader.visitor("ann", 5)) == ["i1"]
    for each in (store, reader):
        each.close()
