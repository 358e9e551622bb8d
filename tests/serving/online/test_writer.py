"""The thread that writes for all requests of a server: groups, order, failures, the end."""

import asyncio
import functools
import itertools
import threading
import time

import pytest

from serving.online import request_log
from serving.online import writer as writer_module
from serving.online.request_log import RecordQueue, WriterCounts
from serving.online.sqlite_store import SqliteStore
from serving.online.store import Forgotten, StoreError
from serving.online.writer import EventWriter, WriterBusyError
from tests.serving.online.test_contract import DAY, T0, event, items_of, lists_of, record


def in_a_loop(test):
    @functools.wraps(test)
    def run(**fixtures):
        asyncio.run(asyncio.wait_for(test(**fixtures), 60))

    return run


class Held(SqliteStore):
    """A store whose commits wait until they are let go, and that counts and fails them."""

    def __init__(self, folder):
        super().__init__(folder)
        self.go, self.began = threading.Event(), threading.Event()
        self.go.set()
        self.sizes, self.error = [], None

    def _commit(self, size):
        self.sizes.append(size)
        self.began.set()
        assert self.go.wait(30)
        if self.error is not None:
            raise self.error

    def add_events(self, events):
        self._commit(len(events))
        return super().add_events(events)

    def add_requests(self, records):
        if self.error is not None:
            raise self.error
        super().add_requests(records)


@pytest.fixture
def store(tmp_path):
    return Held(tmp_path)


@pytest.fixture
def writer(store):
    # Times of the tests lie in the past.
    writer = EventWriter(store, event_days=10_000, log_days=10_000)
    yield writer
    store.go.set()
    writer.close()


async def held(store):
    """Let a commit begin that does not end before ``store.go.set()``."""
    store.go.clear()
    store.began.clear()


async def begun(store):
    await asyncio.to_thread(store.began.wait, 30)


@in_a_loop
async def test_events_that_arrive_while_a_commit_runs_share_the_next(store, writer):
    await held(store)
    first = asyncio.create_task(writer.add([event(0)]))
    await begun(store)
    rest = [asyncio.create_task(writer.add([event(n), event(n - 1)])) for n in range(1, 21)]
    await asyncio.sleep(0.01)
    assert writer.num_waiting == 40
    assert not first.done()
    store.go.set()
    assert await first == [True]
    assert await asyncio.gather(*rest) == [[True, False]] * 20
    assert store.sizes == [1, 40]
    assert writer.num_waiting == 0
    assert len(store.visitor("ann", 100).events) == 21
    written = writer.written
    assert (written.num_events, written.num_duplicates) == ({"click": 21}, 20)


@in_a_loop
async def test_too_many_waiting_events_are_refused_and_none_of_them_stored(
    store, writer, monkeypatch
):
    monkeypatch.setattr(writer_module, "MAX_WAITING_EVENTS", 3)
    await held(store)
    first = asyncio.create_task(writer.add([event(0)]))
    await begun(store)
    second = asyncio.create_task(writer.add([event(1), event(2)]))
    await asyncio.sleep(0)
    with pytest.raises(WriterBusyError, match=r"2 events wait.*at most 3.*same ids"):
        await writer.add([event(3), event(4)])
    third = asyncio.create_task(writer.add([event(5)]))
    await asyncio.sleep(0)
    store.go.set()
    assert await asyncio.gather(first, second, third) == [[True], [True, True], [True]]
    assert items_of(store.visitor("ann", 9)) == ["i0", "i1", "i2", "i5"]


@in_a_loop
async def test_a_failed_commit_acknowledges_nothing_and_the_next_is_tried(store, writer):
    store.error = StoreError("disk is full")
    for error, message in (
        (StoreError("disk is full"), "disk is full"),
        (RuntimeError("odd"), r"RuntimeError\('odd'\)"),
    ):
        store.error = error
        answers = await asyncio.gather(
            *(writer.add([event(n)]) for n in range(3)), return_exceptions=True
        )
        assert [type(answer) for answer in answers] == [StoreError] * 3
        with pytest.raises(StoreError, match=message):
            raise answers[0]
    store.error = None
    assert await writer.add([event(0)]) == [True]
    assert writer.written.num_failures >= 2
    assert writer.written.num_events == {"click": 1}


@in_a_loop
async def test_what_is_asked_after_events_is_done_after_them(store, writer):
    await held(store)
    tasks = [asyncio.create_task(writer.add([event(0)]))]
    await begun(store)
    store.add_requests([record(1)])
    tasks += [
        asyncio.create_task(each)
        for each in (
            writer.add([event(1)]),
            writer.forget("ann", T0 + 10),
            writer.add([event(20)]),
            writer.change_items({"i": True}),
        )
    ]
    await asyncio.sleep(0.01)
    store.go.set()
    results = await asyncio.gather(*tasks)
    assert results == [[True], [True], Forgotten(2, 1), [True], 1]
    assert items_of(store.visitor("ann", 9)) == ["i20"]
    assert lists_of(store) == []


def test_a_batch_that_failed_leaves_no_more_waiting_than_may_wait(monkeypatch):
    """While it is written others arrive; the oldest of all are dropped and counted."""
    monkeypatch.setattr(request_log, "MAX_WAITING_RECORDS", 4)
    written, kept = WriterCounts(), []

    class Failing:
        def add_requests(self, records):
            if arriving:
                for _ in range(arriving.pop()):
                    queue.add(record(next(numbers)))
                raise StoreError("away")
            kept.extend(records)

    queue, numbers = RecordQueue(Failing(), written), itertools.count()
    arriving = [0, 3, 6]
    for _ in range(3):
        queue.add(record(next(numbers)))
    for waiting, dropped in ((4, 5), (4, 8), (4, 8)):
        queue.write()
        assert (len(queue), written.num_dropped) == (waiting, dropped)
    queue.write()
    newest = next(numbers)
    assert kept == [record(number) for number in range(newest - 4, newest)]
    assert (written.num_records, written.num_failures, len(queue)) == (4, 3, 0)


@in_a_loop
async def test_closing_writes_what_waits_and_takes_no_more(tmp_path):
    store = Held(tmp_path)
    writer = EventWriter(store, event_days=10_000, log_days=10_000)
    await held(store)
    waiting = [asyncio.create_task(writer.add([event(n)])) for n in range(3)]
    await begun(store)
    closed = asyncio.create_task(asyncio.to_thread(writer.close))
    while not writer._closing:
        await asyncio.sleep(0.001)
    with pytest.raises(WriterBusyError, match="ending"):
        await writer.add([event(9)])
    store.go.set()
    assert await asyncio.gather(*waiting) == [[True]] * 3
    await closed
    reader = SqliteStore(tmp_path, readonly=True)
    assert len(reader.visitor("ann", 9).events) == 3
    reader.close()


@pytest.mark.parametrize(("days", "events", "lists"), [((2, 30), 0, 1), ((30, 2), 1, 0)])
@in_a_loop
async def test_events_and_lists_are_kept_for_the_days_of_each(tmp_path, days, events, lists):
    store, ago = Held(tmp_path), int(1_000 * time.time()) - T0 - 10 * DAY
    store.add_events([event(1, received_ms=T0 + ago)])
    store.add_requests([record(1, at=ago)])
    writer = EventWriter(store, event_days=days[0], log_days=days[1])
    while len(store.events_after(0, 9)) + len(lists_of(store)) > 1:
        await asyncio.sleep(0.01)
    await asyncio.to_thread(writer.close)
    reader = SqliteStore(tmp_path, readonly=True)
    found = (len(reader.events_after(0, 9)), len(lists_of(reader)))
    assert found == (events, lists)
    reader.close()
