"""Events of a topic in the store: the broker is librdkafka's own mock, over its protocol.

RECSYS_KAFKA=HOST:PORT runs the tests against another broker.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from pipelines.inputs.kafka_events import MessageReader, TopicConsumer
from pipelines.inputs.online_events import UnreadableStoreError, opened
from serving.online.sqlite_store import SqliteStore
from serving.online.store import StoreError

kafka = pytest.importorskip("confluent_kafka")
MOCK = """
import sys, time
from confluent_kafka import Producer
producer = Producer({"test.mock.num.brokers": 1, "log_level": 0})
(broker,) = producer.list_topics(timeout=10).brokers.values()
print(f"{broker.host}:{broker.port}", flush=True)
time.sleep(600)
"""
NAMES = ("customer=user_id", "paid=purchase")
QUICK = {
    "RECSYS_KAFKA_SESSION_TIMEOUT_MS": "6000",
    "RECSYS_KAFKA_HEARTBEAT_INTERVAL_MS": "100",
    "RECSYS_KAFKA_RECONNECT_BACKOFF_MAX_MS": "500",
}


@contextmanager
def mock_broker() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    process = subprocess.Popen([sys.executable, "-c", MOCK], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip(), process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    if given := os.environ.get("RECSYS_KAFKA"):
        yield given
        return
    with mock_broker() as (address, _):
        yield address


@pytest.fixture
def topic(servers: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new topic, as its address."""
    for name, value in QUICK.items():
        monkeypatch.setenv(name, value)
    return f"kafka://{servers}/clicks-{uuid.uuid4().hex}"


def event(number: int, **fields: Any) -> dict[str, Any]:
    return {"user_id": "ann", "item_id": f"sku-{number}", "event_type": "click", **fields}


def send(topic: str, *messages: Any, key: str | None = None) -> None:
    servers, name = topic.removeprefix("kafka://").split("/")
    producer = kafka.Producer({"bootstrap.servers": servers, "log_level": 0})
    for one in messages:
        value = one if isinstance(one, bytes) else json.dumps(one).encode()
        producer.produce(name, value, key=key)
    assert producer.flush(20) == 0


def committed(topic: str) -> int:
    """Count the messages of a topic that the group has done with."""
    servers, name = topic.removeprefix("kafka://").split("/")
    consumer = kafka.Consumer({"bootstrap.servers": servers, "group.id": "shop", "log_level": 0})
    parts = consumer.list_topics(name, timeout=10).topics[name].partitions
    places = consumer.committed([kafka.TopicPartition(name, one) for one in parts], timeout=10)
    consumer.close()
    return sum(max(one.offset, 0) for one in places)


class Consumption:
    """A consumer in a thread, and what it says."""

    def __init__(self, topic: str, folder: Path, store: Any, rename: Any = ()) -> None:
        self.said: list[str] = []
        self.dead = folder / "dead.jsonl"
        self.store = store
        self.consumer = TopicConsumer(topic, "shop", self.said.append)
        work = (store, self.dead, MessageReader.parse(rename))
        self._thread = threading.Thread(target=self._run, args=work)
        self._thread.start()

    def _run(self, *work: Any) -> None:
        with suppress(KilledError):
            self.consumer.run(*work)

    def until(self, reached: Callable[[], bool]) -> None:
        end = time.monotonic() + 40
        while not reached() and time.monotonic() < end:
            time.sleep(0.05)
        assert reached(), (self.consumer.counts, self.said)

    def end(self, seconds: float = 15) -> list[Any]:
        """End it; return the events of the store."""
        self.consumer.stop.set()
        self._thread.join(seconds)
        assert not self._thread.is_alive()
        return [one for _, one in self.store.events_after(0, 10_000)]


class KilledError(Exception):
    """The consumer ends between the store and the commit of offsets."""


class FaultyStore:
    """A store that fails before or after it keeps events, as often as it is told."""

    def __init__(self, store: SqliteStore, before: int = 0, after: int = 0) -> None:
        self._store, self.before, self.after = store, before, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def add_events(self, events: Any) -> list[bool]:
        if self.before:
            self.before -= 1
            raise StoreError("the disk is full")
        new = self._store.add_events(events)
        if self.after:
            self.after -= 1
            raise KilledError
        return new


@pytest.mark.slow
def test_events_are_stored_once_though_a_batch_is_read_again_after_a_kill(topic, tmp_path):
    store = SqliteStore(tmp_path / "online")
    store.forget("ben", int(1_000 * time.time()) + 60_000)
    send(
        topic,
        *(event(number) for number in range(20)),
        event(20, event_id="own"),
        b"no JSON",
        b"[1]",
        event(21, event_type="stolen"),
        {**event(22), "user_id": 7},
        event(23, unix_time=time.time() + 9_000),
        event(24, user_id="ben"),
        {"customer": "cem", "item_id": "sku-25", "event_type": "paid", "more": {"x": 1}},
    )
    killed = Consumption(topic, tmp_path, FaultyStore(store, after=1), NAMES)
    killed.until(lambda: not killed._thread.is_alive())
    again = Consumption(topic, tmp_path, store, NAMES)
    again.until(lambda: again.consumer.counts.broken == 5)
    send(topic, event(20, event_id="own"), event(26))
    again.until(lambda: len(store.events_after(0, 100)) == 23)
    events = {one.item_id: one for one in again.end()}
    assert events.keys() == {*(f"sku-{number}" for number in range(21)), "sku-25", "sku-26"}
    counts = again.consumer.counts
    # Those of the killed batch are known, and ben, who was deleted.
    assert counts.stored + counts.known == 25
    assert counts.known >= 3
    assert (events["sku-25"].user_id, events["sku-25"].event_type) == ("cem", "purchase")
    letters = [json.loads(line) for line in again.dead.read_text().splitlines()]
    assert again.dead.stat().st_mode & 0o077 == 0
    whys = {one["message"]: one["why"] for one in letters}
    assert len(whys) == 5
    assert "JSON object" in whys["[1]"]
    assert committed(topic) == 30


@pytest.mark.slow
def test_a_store_and_a_broker_that_go_away_are_said_and_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr("pipelines.inputs.kafka_events.PAUSE_SECONDS", (0.05, 0.1))
    for name, value in {**QUICK, "RECSYS_KAFKA_SOCKET_TIMEOUT_MS": "2000"}.items():
        monkeypatch.setenv(name, value)
    with mock_broker() as (servers, broker):
        topic = f"kafka://{servers}/clicks"
        send(topic, event(1))
        found = Consumption(topic, tmp_path, FaultyStore(SqliteStore(tmp_path / "o"), before=3))
        found.until(lambda: found.consumer.counts.stored == 1)
        assert sum("the disk is full; 1 events" in line for line in found.said) == 3
        os.kill(broker.pid, signal.SIGSTOP)
        found.until(lambda: any("tried again" in line for line in found.said))
        os.kill(broker.pid, signal.SIGCONT)
        found.until(lambda: "answers again" in found.said[-1])
        send(topic, event(2))
        found.until(lambda: found.consumer.counts.stored == 2)
        broker.kill()
        found.until(lambda: "tried again" in found.said[-1])
        assert len(found.end(seconds=12)) == 2


def test_the_command_stores_until_it_is_told_to_end(topic, tmp_path):
    words = [sys.executable, "-m", "pipelines.cli.main", "events", "consume", topic]
    words += ["--store", f"sqlite:{tmp_path / 'online'}", "--dead-letters", str(tmp_path / "dead")]
    send(topic, event(1), b"?", key="one partition")
    command = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "dead").exists() and command.poll() is None:
        time.sleep(0.5)
    command.send_signal(signal.SIGTERM)
    wrote, said = command.communicate(timeout=30)
    assert command.returncode == 0, said
    assert f"1 events stored, 0 known, 1 broken, see {tmp_path / 'dead'}" in wrote


@pytest.mark.parametrize(
    ("address", "variables", "expected"),
    [
        ("kafka://ann:hunter2@broker:9092/clicks", {}, "SASL_PASSWORD"),
        ("kafka://broker/clicks", {}, "HOST:PORT"),
        ("kafka://broker:9092/clicks", {"RECSYS_KAFKA_SASL_PASSWROD": "hunter2"}, "sasl.passwrod"),
    ],
)
def test_passwords_come_by_variables_and_are_not_repeated(
    address, variables, expected, tmp_path, monkeypatch
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=expected) as refused:
        TopicConsumer(address, "shop", print).run(None, tmp_path, MessageReader())
    assert "hunter2" not in str(refused.value)
    store = opened("redis://:hunter2@127.0.0.1:1/0")
    with pytest.raises(UnreadableStoreError) as away, store as found:
        found.hidden_items()
    assert "hunter2" not in str(away.value)


def test_a_wrong_name_and_a_missing_package_are_refused(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="item_id"):
        MessageReader.parse(["sku=article"])
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    consumer = TopicConsumer("kafka://broker:9092/clicks", "shop", print)
    with pytest.raises(ValueError, match=r"recsys-platform\[kafka\]"):
        consumer.run(None, tmp_path, MessageReader())
