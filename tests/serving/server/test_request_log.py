"""Served lists on their way to the process that writes them: kept, dropped, flushed, replaced."""

import asyncio
import errno
import os
import socket
import threading

import orjson
import pytest

from serving.online.request_log import RequestLogWriter
from serving.online.sqlite_store import SqliteStore
from serving.online.store import StoreError
from serving.server import request_log as front_end
from serving.server.request_log import RequestLog
from tests.serving.online import test_contract
from tests.serving.online.test_contract import T0, lists_of
from tests.serving.online.test_writer import in_a_loop


def record(number):
    """A record whose columns stand in its document."""
    made = test_contract.record(number)
    columns = {"request_id": made.request_id, "unix_ms": made.time_ms, "user_id": made.user_id}
    return made._replace(document=orjson.dumps({**columns, "items": []}))


class Failing(SqliteStore):
    error = None

    def add_requests(self, records):
        if self.error is not None:
            raise self.error
        super().add_requests(records)


class Process:
    """Stands for the process by a thread, and counts what the front hears of."""

    def __init__(self, folder):
        self.store = Failing(folder)
        self.kept = self.dropped = self.num_starts = self.num_failures = 0
        self.log = RequestLog(self._fork, self._count)
        self.begins = asyncio.Event()
        self.begins.set()

    async def __aenter__(self):
        self._task = asyncio.create_task(self.log.run())
        return self

    async def __aexit__(self, *_):
        await self.log.close()
        self._task.cancel()

    async def _fork(self, descriptor):
        await self.begins.wait()
        if self.num_failures:
            self.num_failures -= 1
            raise OSError(errno.EMFILE, "too many open files")
        self.num_starts += 1
        self._socket = socket.socket(fileno=os.dup(descriptor))
        writer = RequestLogWriter(self._socket, self.store)
        threading.Thread(target=self._run, args=(writer, self._socket), daemon=True).start()

    def _run(self, writer, end):
        with end:
            writer.run()

    def _count(self, kept, dropped):
        self.kept, self.dropped = self.kept + kept, self.dropped + dropped

    def die(self):
        self._socket.shutdown(socket.SHUT_RDWR)

    def send(self, *numbers):
        documents = [record(number).document for number in numbers]
        self.log.log(b"".join(documents), [len(document) for document in documents])

    async def until(self, true):
        while not true():
            await asyncio.sleep(0.002)


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(front_end, "PAUSE_SECONDS", 0.01)


@in_a_loop
async def test_the_newest_are_dropped_and_counted_where_too_much_waits(tmp_path, monkeypatch):
    monkeypatch.setattr(front_end, "MAX_WAITING_BYTES", 2 * len(record(1).document) - 1)
    async with Process(tmp_path) as process:
        process.begins.clear()
        for number in range(1, 6):
            process.send(number)
        assert process.dropped == 3
        process.begins.set()
        await process.until(lambda: process.kept == 2)
        assert lists_of(process.store) == [record(2), record(1)]


@in_a_loop
async def test_a_flush_waits_until_the_store_has_everything_before_it(tmp_path, monkeypatch):
    async with Process(tmp_path) as process:
        process.send(1)
        assert await process.log.flushed()
        assert lists_of(process.store) == [record(1)]
        monkeypatch.setattr(front_end, "FLUSH_SECONDS", 0.05)
        process.store.error = StoreError("away")
        process.send(2)
        assert not await process.log.flushed()
        process.store.error = None
        await process.until(lambda: process.kept == 2)
        assert await process.log.flushed()


@in_a_loop
async def test_a_process_that_ends_is_replaced_and_what_it_had_is_counted(tmp_path):
    async with Process(tmp_path) as process:
        process.send(1)
        await process.until(lambda: process.kept == 1)
        process.store.error = StoreError("away")
        process.send(2, 3)
        flushing = asyncio.create_task(process.log.flushed())
        await asyncio.sleep(0.02)
        process.die()
        # Nothing of a process that is gone will be written any more.
        assert await flushing
        await process.until(lambda: process.num_starts == 2)
        assert (process.kept, process.dropped) == (1, 2)
        process.store.error = None
        process.send(4)
        await process.until(lambda: process.kept == 2)


@in_a_loop
async def test_a_process_that_cannot_be_started_is_started_once_it_can(tmp_path, monkeypatch):
    def failing(*arguments, made=socket.socketpair):
        monkeypatch.setattr(socket, "socketpair", made)
        raise OSError(errno.EMFILE, "too many open files")

    async with Process(tmp_path) as process:
        process.num_failures = 2
        monkeypatch.setattr(socket, "socketpair", failing)
        process.send(1)
        # What removes a user waits for this, and is refused without it.
        assert await process.log.flushed()
        assert (process.kept, process.dropped, process.num_starts) == (1, 0, 1)


def test_a_list_of_a_user_who_is_forgotten_meanwhile_is_not_kept(tmp_path):
    writing, forgetting = SqliteStore(tmp_path), SqliteStore(tmp_path)
    writing.add_requests([record(1)])
    kept_before = writing._not_forgotten

    def forgotten_meanwhile(records):
        with pytest.raises(StoreError, match="another process is writing"):
            SqliteStore(tmp_path, timeout_ms=20).forget("ann", T0 + 100)
        return kept_before(records)

    writing._not_forgotten = forgotten_meanwhile
    writing.add_requests([record(2)])
    assert lists_of(forgetting) == [record(1)]
    # As one does where it has failed halfway.
    assert forgetting.forget("ann", T0 + 100).num_requests == 1
    writing._not_forgotten = kept_before
    writing.add_requests([record(3), record(101)])
    assert lists_of(forgetting) == [record(101)]


@in_a_loop
async def test_a_record_that_cannot_be_read_takes_no_other_with_it(tmp_path):
    async with Process(tmp_path) as process:
        process.log.log(b"no record", [9])
        process.send(1)
        await process.until(lambda: (process.kept, process.dropped) == (1, 1))
