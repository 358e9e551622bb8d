"""The online store in Redis 7 or Valkey: what several servers share, and 10,000 events a second.

`serving.online.redis_scripts` has the layout. An acknowledged write is as durable as
the settings ``appendonly`` and ``appendfsync`` make it; the process that writes logs where events
could still be lost.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from logging import WARNING
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import orjson

from features.forget_list import ForgetList, UserKeys, key_name
from serving.log import log
from serving.online.events import Event
from serving.online.records import items_of
from serving.online.store import (
    Forgotten,
    OnlineStore,
    RecentEvent,
    RequestRecord,
    StoreError,
    Visitor,
    first_id,
    in_force,
)

if TYPE_CHECKING:
    from serving.online.redis_connection import Argument, Command, RedisConnections

MIN_VERSION = 7
MAX_RECENT = 1_000
"""Events of a history, and as many impressions and refusals, kept at hand for each user."""
EVENTS_A_SCRIPT = 500
"""Others wait while a script runs."""
EVENTS_A_CALL = 5_000
"""Each call has its own limit of time; of a larger batch the first calls may be stored alone."""
LISTS_A_CALL = 1_000
LISTS_A_SCRIPT = 200
REMOVED_A_SCRIPT = 500
PAUSE_SECONDS = 0.01
"""Between removals, as long as one takes, so that others get half of the time."""
READ_A_CALL = 2_000
SLOW_TIMEOUT_MS = 2_000.0


_REST = attrgetter("received_ms", "value", "request_id", "slot", "domain", "session_id")


def _packed_event(event: Event) -> tuple[str, str, str, bytes]:
    rest = list(_REST(event))
    while rest[-1] is None:
        rest.pop()
    recent = f"{event.time_ms} {event.event_type} {event.item_id}"
    try:
        return event.event_id, event.user_id, recent, orjson.dumps(rest)
    except orjson.JSONEncodeError as error:
        raise StoreError(f"event {event.event_id!r} cannot be stored: {error}") from None


def _event(entry: Sequence[Any]) -> tuple[int, Event]:
    """Read an entry of the stream."""
    place, fields = int(entry[0].partition(b"-")[0]), entry[1]
    time_ms, event_type, item_id = fields[5].decode().split(" ", 2)
    received_ms, *rest = orjson.loads(fields[7])
    event = Event(
        fields[1].decode(),
        fields[3].decode(),
        item_id,
        event_type,
        int(time_ms),
        received_ms,
        *rest,
    )
    return place, event


def _recent_event(element: bytes) -> RecentEvent:
    time_ms, event_type, item_id = element.decode().rpartition(" ")[0].split(" ", 2)
    return RecentEvent(item_id, event_type, int(time_ms))


def _packed_request(record: RequestRecord) -> tuple[str, bytes, str, bytes, int]:
    """Pack a record: one line of JSON for the scripts, then the document, compressed."""
    head = orjson.dumps([record.time_ms, record.user_id])
    value = head + b"\n" + zlib.compress(record.document, 1)
    member = record.request_id.encode() + orjson.dumps(items_of(record.document))
    return record.request_id, value, record.user_id or "", member, record.time_ms


def _request(request_id: bytes, value: bytes) -> RequestRecord:
    head, _, document = value.partition(b"\n")
    time_ms, user_id = orjson.loads(head)
    return RequestRecord(request_id.decode(), time_ms, user_id, zlib.decompress(document))


class RedisStore(OnlineStore):
    """An online store in Redis; threads may share it, and it works in a forked process."""

    def __init__(self, connections: RedisConnections) -> None:
        self._redis = connections
        self._prefix = connections.prefix
        self._losses_logged = False

    @classmethod
    def open(
        cls, url: str, timeout_ms: float = 50, *, slow_timeout_ms: float = SLOW_TIMEOUT_MS
    ) -> RedisStore:
        """Open the store at a URL such as ``redis://:password@host:6379/0?prefix=shop:``.

        A Redis that does not answer is logged and tried again at each call: a server starts
        without it.

        Args:
            timeout_ms: What a request may wait for it, connecting included.
            slow_timeout_ms: The same for writes, exports and removals.

        Raises:
            StoreError: It refuses the password, or is too old, or holds another version's store.
            ValueError: The URL is none of a Redis.
        """
        try:
            from serving.online.redis_connection import RedisConnections, StoreUnreachableError
        except ModuleNotFoundError as error:
            raise StoreError(
                f"a store in Redis needs the package {error.name}: pip install 'redis[hiredis]'"
            ) from None
        connections = RedisConnections(url, timeout_ms=timeout_ms, slow_timeout_ms=slow_timeout_ms)
        store = cls(connections)
        try:
            store._check_version()
        except StoreUnreachableError as error:
            log("store_unreachable", {"error": str(error)}, level=WARNING)
        return store

    def _check_version(self) -> None:
        (about,) = self._redis.run([(b"INFO", b"server")])
        lines = dict(line.split(":", 1) for line in about.decode().splitlines() if ":" in line)
        version = lines.get("redis_version", "0")
        if int(version.partition(".")[0]) < MIN_VERSION:
            raise StoreError(
                f"{self._redis.where} is of version {version}; {MIN_VERSION} or newer is "
                "needed, or any Valkey"
            )

    def _log_losses(self) -> None:
        """Log once, in the process that writes, how acknowledged events may be lost."""
        from serving.online.redis_connection import StoreUnreachableError

        if self._losses_logged:
            return
        names = (b"appendonly", b"appendfsync", b"maxmemory-policy")
        try:
            (found,) = self._redis.run([(b"CONFIG", b"GET", *names)], slow=True)
        except StoreUnreachableError:
            raise
        except StoreError as error:
            # Hosted ones hide it.
            log("store_durability_unknown", {"error": str(error)}, level=WARNING)
            found = []
        self._losses_logged = True
        config = {found[i].decode(): found[i + 1].decode() for i in range(0, len(found), 2)}
        for setting, loss in _losses(config):
            fields = {"store": self._redis.where, "setting": setting, "loss": loss}
            log("store_may_lose_events", fields, level=WARNING)

    def add_events(self, events: Sequence[Event]) -> list[bool]:
        self._log_losses()
        packed = [(event.user_id, event.received_ms, _packed_event(event)) for event in events]
        new: list[bool] = []
        for begin in range(0, len(packed), EVENTS_A_CALL):
            some = packed[begin : begin + EVENTS_A_CALL]
            for reply in self._added("add_events", (MAX_RECENT,), some, EVENTS_A_SCRIPT):
                new += [is_new == 1 for is_new in reply]
        return new

    def add_requests(self, records: Sequence[RequestRecord]) -> None:
        for start in range(0, len(records), LISTS_A_CALL):
            some = records[start : start + LISTS_A_CALL]
            packed = [(one.user_id or "", one.time_ms, _packed_request(one)) for one in some]
            self._added("add_requests", (), packed, LISTS_A_SCRIPT)

    def _added(
        self,
        script: str,
        first: tuple[Argument, ...],
        packed: Sequence[tuple[str, int, tuple[Argument, ...]]],
        size: int,
    ) -> list[Any]:
        """Run a script that adds, ``size`` a time, within one call.

        Hashes of users' ids are sent only if a user was forgotten since the first was received.

        Args:
            first: Arguments before the number of hashes.
            packed: User, when it was received, and the script's arguments of each.
        """
        parts = [packed[start : start + size] for start in range(0, len(packed), size)]

        def command(part: Sequence[tuple[str, int, tuple[Argument, ...]]], count: int) -> Command:
            oldest = min(received for _, received, _ in part)
            arguments: list[Argument] = []
            for user_id, _, of_script in part:
                arguments += of_script
                arguments += self._redis.user_keys().hashes(user_id) if count else []
            return self._redis.command(script, *first, count, oldest, *arguments)

        replies = self._redis.run([command(part, 0) for part in parts], slow=True)
        for place in [place for place, reply in enumerate(replies) if reply is None]:
            count = len(self._redis.user_keys().hashes(""))
            (replies[place],) = self._redis.run([command(parts[place], count)], slow=True)
        return replies

    def visitor(self, user_id: str | None, limit: int, before_ms: int | None = None) -> Visitor:
        if user_id is None:
            (version,) = self._redis.run([(b"GET", f"{self._prefix}items_version")])
            return Visitor(items_version=int(version or 0))
        before = "" if before_ms is None else before_ms
        hashes = self._redis.user_keys().hashes(user_id)
        events, forgotten_ms, version, refusals, topics = self._redis.script(
            "visitor", user_id, limit, before, *hashes
        )
        return Visitor(
            events=[_recent_event(element) for element in events],
            forgotten_ms=None if forgotten_ms < 0 else forgotten_ms,
            items_version=int(version or 0),
            refused=in_force(_recent_event(element) for element in refusals),
            topics=(topics or b"").decode(),
        )

    def shown_items(self, user_id: str, since_ms: int) -> list[str]:
        impressions, lists = self._redis.script(
            "shown", user_id, since_ms, f"[{first_id(since_ms)}"
        )
        shown = [_recent_event(element).item_id for element in impressions]
        shown += [item for member in lists for item in orjson.loads(member[32:])]
        return list(dict.fromkeys(shown))

    def request(self, request_id: str) -> RequestRecord | None:
        (value,) = self._redis.run([(b"GET", f"{self._prefix}request:{request_id}")])
        return None if value is None else _request(request_id.encode(), value)

    def put_topics(self, user_id: str, topics: str) -> None:
        key = f"{self._prefix}topics:{user_id}"
        command = (b"SET", key, topics) if topics else (b"DEL", key)
        self._redis.run([command], slow=True)

    def change_items(self, changes: Mapping[str, bool]) -> int:
        # The state of a hidden item is a list, of which readers look at the first value.
        pairs = ((item_id, b"[true,{}]" if hides else b"") for item_id, hides in changes.items())
        parts = [part for pair in pairs for part in pair]
        return int(self._redis.script("change_items", *parts, slow=True))

    def hidden_items(self) -> tuple[int, list[str]]:
        version, found = self._redis.script("hidden_items", slow=True)
        return int(version or 0), sorted(item_id.decode() for item_id in found)

    def forget(self, user_id: str, now_ms: int) -> Forgotten:
        """See the protocol; where it fails halfway, call it again.

        Readers see no history from the start; the stream and the lists are emptied in steps.
        """
        keys, of_environment = self._redis.user_keys(), UserKeys.read().keys
        key, *_ = keys.keys
        stored = b"" if key in of_environment else key
        hashes = keys.hashes(user_id)
        last = self._redis.script(
            "forget", user_id, now_ms, stored, key_name(key), *hashes, slow=True
        )
        num_events = sum(
            removed for _, removed in self._steps("forget_events", user_id, int(last or 0))
        )
        num_requests = sum(removed for _, removed in self._steps("forget_requests", user_id))
        return Forgotten(num_events, num_requests)

    def _steps(self, name: str, *arguments: str | int) -> Iterator[tuple[int, int]]:
        """Run a script until it finds nothing more; gives how many it looked at and removed."""
        while True:
            looked, removed = self._redis.script(name, *arguments, REMOVED_A_SCRIPT, slow=True)
            yield looked, removed
            if looked < REMOVED_A_SCRIPT:
                return

    def forgotten(self) -> ForgetList:
        (found,) = self._redis.run([(b"HGETALL", f"{self._prefix}forgotten")], slow=True)
        moments = {found[i].decode(): int(found[i + 1]) for i in range(0, len(found), 2)}
        return ForgetList(moments, self._redis.user_keys())

    def events_after(self, place: int, limit: int) -> list[tuple[int, Event]]:
        events: list[tuple[int, Event]] = []
        while len(events) < limit:
            count = min(READ_A_CALL, limit - len(events))
            start = f"({place}-0"
            command = (b"XRANGE", f"{self._prefix}events", start, b"+", b"COUNT", count)
            (entries,) = self._redis.run([command], slow=True)
            events += [_event(entry) for entry in entries]
            if len(entries) < count:
                break
            place = events[-1][0]
        return events

    def requests_between(
        self, since_ms: int, before_ms: int, limit: int, after_id: str = ""
    ) -> list[RequestRecord]:
        first = max(first_id(since_ms), after_id)
        low = f"({first}" if first == after_id else f"[{first}"
        high = f"({first_id(before_ms)}"
        found = self._redis.script("requests_between", low, high, limit, slow=True)
        return [_request(name, value) for name, value in found if value is not None]

    def remove_old(self, events_before_ms: int, requests_before_ms: int) -> None:
        """See the protocol.

        It takes about a second for each 100,000 events, in short steps: call it on another thread
        than the one that acknowledges events.
        """
        self._log_losses()
        place = 0
        while True:
            looked, removed, last = self._redis.script(
                "remove_events", events_before_ms, place, REMOVED_A_SCRIPT, slow=True
            )
            place = int(last)
            # Clocks of servers differ by less time than this number of events takes to arrive.
            if looked < REMOVED_A_SCRIPT or removed == 0:
                break
            time.sleep(PAUSE_SECONDS)
        stays = f"({first_id(requests_before_ms)}"
        remove = partial(self._redis.script, "remove_requests", stays, REMOVED_A_SCRIPT, slow=True)
        while remove() == REMOVED_A_SCRIPT:
            time.sleep(PAUSE_SECONDS)

    def close(self) -> None:
        self._redis.close()


def _losses(config: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """List settings of a Redis by which acknowledged events may be lost, and when they are."""
    if config.get("appendonly", "yes") == "no":
        yield "appendonly no", "all since the last snapshot, when Redis ends"
    elif (often := config.get("appendfsync", "always")) != "always":
        last = "the last second" if often == "everysec" else "what the system had not written"
        yield f"appendfsync {often}", f"{last}, when its machine fails"
    policy = config.get("maxmemory-policy", "noeviction")
    if policy != "noeviction":
        yield f"maxmemory-policy {policy}", "any, when its memory is full"
