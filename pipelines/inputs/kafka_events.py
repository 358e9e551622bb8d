"""Online events from a topic of Kafka, or of a broker that has its protocol, to an online store.

Offsets are committed after the store holds the events, and an event without an id gets that of its
place in the topic. A batch that is read again after a kill is therefore stored once.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from threading import Event as Signal
from typing import TYPE_CHECKING, Any, get_args

import orjson

from serving.online.events import Event, EventType, SentEvent
from serving.online.store import OnlineStore, StoreError
from serving.web.http import RefusedError, validated

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

SETTINGS = "RECSYS_KAFKA_"
"""Beginning of variables that are settings of librdkafka: RECSYS_KAFKA_SASL_PASSWORD."""
MAX_BATCH = 1_000
WAIT_SECONDS = 0.2
GATHER_SECONDS = 0.005
"""Seconds that a message waits for others to be stored with."""
PAUSE_SECONDS = (0.5, 30.0)
"""First and longest pause before a store is tried again."""
MAX_DEAD_CHARACTERS = 10_000
_ADDRESS = re.compile(r"kafka://([^@/\s,:]+:\d+(?:,[^@/\s,:]+:\d+)*)/([\w.-]{1,249})")


@dataclass
class Consumed:
    """Counts of messages."""

    stored: int = 0
    known: int = 0
    """Events that the store had, or of users who were deleted since."""
    broken: int = 0

    def __str__(self) -> str:
        return f"{self.stored:,} events stored, {self.known:,} known, {self.broken:,} broken"


@dataclass(frozen=True)
class MessageReader:
    """Read events from messages of another program."""

    fields: Mapping[str, str] = field(default_factory=dict)
    """Field of an event by the name that messages have for it."""
    types: Mapping[str, str] = field(default_factory=dict)
    """Event type by the name that messages have for it; of "" for messages without one."""

    @classmethod
    def parse(cls, pairs: Sequence[str]) -> MessageReader:
        """Read THEIRS=OURS, names of fields and of event types."""
        fields, types = {}, {}
        for pair in pairs:
            theirs, _, ours = pair.rpartition("=")
            if ours in get_args(EventType):
                types[theirs] = ours
            elif theirs and ours in SentEvent.model_fields:
                fields[theirs] = ours
            else:
                allowed = ", ".join((*SentEvent.model_fields, *get_args(EventType)))
                raise ValueError(f"{pair!r} is not THEIRS=OURS; OURS is one of {allowed}")
        return cls(fields, types)

    def read(self, message: Message, now_ms: int) -> Event:
        """Read an event; it counts as received when the broker got it.

        Raises:
            ValueError: The message is no event; says why, without its values.
        """
        try:
            document = orjson.loads(message.value() or b"")
        except orjson.JSONDecodeError as error:
            raise ValueError(f"not JSON: {error.msg}") from None
        if not isinstance(document, dict):
            raise ValueError(f"not a JSON object but a {type(document).__name__}")
        named = {self.fields.get(name, name): value for name, value in document.items()}
        given = {name: named[name] for name in SentEvent.model_fields if name in named}
        with suppress(KeyError, TypeError):
            given["event_type"] = self.types[given.get("event_type", "")]
        kind, stamp_ms = message.timestamp()
        received_ms = min(now_ms, stamp_ms) if kind else now_ms
        given.setdefault("unix_time", received_ms / 1_000)
        given.setdefault("event_id", _place(message))
        try:
            event = Event.received(validated(SentEvent, given), now_ms)
        except RefusedError as error:
            raise ValueError(str(error)) from None
        # A user who was deleted after the message was sent stays deleted.
        return replace(event, received_ms=received_ms)


def _place(message: Message) -> str:
    # An id has at most 128 characters, a topic's name 249.
    return f"{str(message.topic())[-80:]}:{message.partition()}:{message.offset()}"


def write_dead_letters(path: Path, broken: Sequence[tuple[Message, str]]) -> None:
    """Append messages that are no events, a line each; they are on the disk on return."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    with path.open("ab") as file:
        for message, why in broken:
            text = (message.value() or b"").decode(errors="replace")[:MAX_DEAD_CHARACTERS]
            line = {"place": _place(message), "why": why, "message": text}
            file.write(orjson.dumps(line) + b"\n")
        file.flush()
        os.fsync(file.fileno())


class TopicConsumer:
    """Moves events of a topic to a store until it is stopped."""

    def __init__(self, address: str, group: str, said: Callable[[str], None]) -> None:
        """Take the address of a topic.

        Args:
            address: ``kafka://HOST:PORT,HOST:PORT/TOPIC``.
            group: Group of consumers that share the topic's partitions and remember its offsets.
            said: Takes a sentence when the broker or the store goes away and comes back.
        """
        found = _ADDRESS.fullmatch(address)
        if found is None:
            raise ValueError(
                "the address of a topic is kafka://HOST:PORT/TOPIC, several brokers with commas, "
                f"without a password: set {SETTINGS}SASL_USERNAME and {SETTINGS}SASL_PASSWORD"
            )
        self.servers, self.topic = found.groups()
        self._group, self._said = group, said
        self.stop = Signal()
        self.counts = Consumed()
        self._faults: set[str] = set()

    def run(self, store: OnlineStore, dead_letters: Path, reader: MessageReader) -> Consumed:
        """Store events; messages that are none go to a file."""
        with self._consumer() as consumer:
            while not self.stop.is_set():
                first = consumer.poll(WAIT_SECONDS)
                rest = [] if first is None else consumer.consume(MAX_BATCH, GATHER_SECONDS)
                messages = [one for one in (first, *rest) if one is not None]
                faults = [error for one in messages if (error := one.error()) is not None]
                for error in faults:
                    self._failed(error)
                messages = [one for one in messages if one.error() is None]
                if self._faults and not faults:
                    self._check(consumer)
                if messages:
                    events, broken = _sort(messages, reader)
                    if broken:
                        write_dead_letters(dead_letters, broken)
                    if not self._store(store, events):
                        break
                    self.counts.broken += len(broken)
                    consumer.commit(offsets=_after(messages), asynchronous=True)
        return self.counts

    @contextmanager
    def _consumer(self) -> Iterator[Consumer]:
        """Join the group, and leave it at the end."""
        try:
            kafka: Any = import_module("confluent_kafka")
        except ModuleNotFoundError:
            raise ValueError(
                "confluent-kafka is not installed: pip install 'recsys-platform[kafka]'"
            ) from None
        settings = {
            name.removeprefix(SETTINGS).lower().replace("_", "."): value
            for name, value in os.environ.items()
            if name.startswith(SETTINGS)
        }
        ours = {
            "bootstrap.servers": self.servers,
            "group.id": self._group,
            "enable.auto.commit": False,
            "error_cb": self._failed,
            "on_commit": self._committed,
            "log_level": 0,
        }
        try:
            consumer: Consumer = kafka.Consumer(
                {"auto.offset.reset": "earliest", **settings, **ours}
            )
        except kafka.KafkaException as error:
            raise ValueError(f"{error.args[0].str()}; see the variables {SETTINGS}*") from None
        try:
            consumer.subscribe([self.topic])
            yield consumer
        finally:
            consumer.close()

    def _failed(self, error: KafkaError) -> None:
        """Say a fault once; librdkafka tries again by itself, later and later."""
        if error.name() not in self._faults:
            self._said(f"kafka: {error.str()}; it is tried again")
            self._faults.add(error.name())

    def _committed(self, error: KafkaError | None, _: object) -> None:
        if error is not None:
            self._said(f"kafka: offsets were not committed, {error.str()}; events are read again")

    def _check(self, consumer: Consumer) -> None:
        """Ask whether the topic is there again after a fault."""
        with suppress(import_module("confluent_kafka").KafkaException):
            found = consumer.list_topics(self.topic, timeout=1.0)
            if found.topics[self.topic].error is None:
                self._faults.clear()
                self._said(f"kafka: topic {self.topic} answers again")

    def _store(self, store: OnlineStore, events: Sequence[Event]) -> bool:
        """Store events, again and again until it succeeds; False if stopped before."""
        pause, longest = PAUSE_SECONDS
        while True:
            try:
                new = sum(store.add_events(events))
            except StoreError as error:
                self._said(f"{error}; {len(events):,} events are stored again in {pause:g} s")
                if self.stop.wait(pause):
                    return False
                pause = min(2 * pause, longest)
            else:
                self.counts.stored += new
                self.counts.known += len(events) - new
                return True


def _after(messages: Sequence[Message]) -> list[TopicPartition]:
    """Return the offset after the last message of each partition."""
    kafka: Any = import_module("confluent_kafka")
    last = {(one.topic(), one.partition()): int(one.offset() or 0) for one in messages}
    return [kafka.TopicPartition(*place, offset + 1) for place, offset in last.items()]


def _sort(
    messages: Sequence[Message], reader: MessageReader
) -> tuple[list[Event], list[tuple[Message, str]]]:
    events, broken = [], []
    now_ms = int(1_000 * time.time())
    for message in messages:
        try:
            events.append(reader.read(message, now_ms))
        except ValueError as error:
            broken.append((message, str(error)))
    return events, broken
