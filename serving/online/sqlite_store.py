"""The online store in SQLite: one file of events and items, and one file a day of served lists.

    events.db                 events, topics, items, forgotten users: on disk before a write returns
    user.keys                 keys that forgotten users' ids are hashed with
    requests-YYYY-MM-DD.db    served lists: the last ones may be lost with the power

Any number of processes read; several may write, one at a time. The folder must be on a disk of
the machine: WAL needs memory that its processes share.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from pathlib import Path

from features.forget_list import ForgetList, UserKeys
from serving.online.events import REFUSAL_TYPES, Event
from serving.online.records import items_of
from serving.online.sqlite_files import SqliteFile, describe_failure
from serving.online.sqlite_requests import DailyRequests
from serving.online.store import (
    MAX_REFUSALS,
    Forgotten,
    OnlineStore,
    RecentEvent,
    RequestRecord,
    StoreError,
    Visitor,
    in_force,
)

VERSION = 1
WRITE_TIMEOUT_MS = 5_000.0
"""Longest wait for the commit of another server."""
ROWS_A_STATEMENT = (256, 64, 16, 4, 1)
"""Python's lock is given away once a statement, so that a commit does not wait for it row by row;
few lengths, so that statements are compiled once."""
REMOVED_A_COMMIT = 1_000
PAUSE_SECONDS = 0.01
"""Between commits of a removal, for others to write."""
MAX_SHOWN_LISTS = 200
END_OF_TIME = 1 << 62
PRAGMAS = ("synchronous = FULL", "secure_delete = ON", "journal_size_limit = 67108864")

_FIELDS = tuple(field.name for field in fields(Event))
_VALUES = attrgetter(*_FIELDS)
_NAMES = ", ".join(_FIELDS)
_ROW = f"({', '.join('?' * len(_FIELDS))})"
_INSERT = {
    size: f"INSERT INTO events ({_NAMES}) VALUES {', '.join([_ROW] * size)}"
    for size in ROWS_A_STATEMENT
}
_SCHEMA = """
CREATE TABLE events (
    place INTEGER PRIMARY KEY AUTOINCREMENT, event_id TEXT NOT NULL UNIQUE,
    user_id TEXT NOT NULL, item_id TEXT NOT NULL, event_type TEXT NOT NULL,
    time_ms INTEGER NOT NULL, received_ms INTEGER NOT NULL,
    value REAL, request_id TEXT, slot INTEGER, domain TEXT, session_id TEXT
);
-- Each holds all that its reader reads.
CREATE INDEX histories ON events (user_id, time_ms, place, item_id, event_type)
    WHERE event_type <> 'impression';
CREATE INDEX impressions ON events (user_id, time_ms, item_id) WHERE event_type = 'impression';
CREATE INDEX arrivals ON events (received_ms);
CREATE TABLE items (
    item_id TEXT PRIMARY KEY, hidden INTEGER NOT NULL, properties TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE forgotten (
    user_hash TEXT PRIMARY KEY, forgotten_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE state (items_version INTEGER NOT NULL, last_forgotten_ms INTEGER NOT NULL);
INSERT INTO state VALUES (0, -1);
"""
REFUSALS = str(REFUSAL_TYPES)
_VISITOR = f"""
SELECT item_id, event_type, time_ms FROM (
    SELECT item_id, event_type, time_ms FROM events
    WHERE user_id = ? AND event_type <> 'impression' AND time_ms < ?
    AND event_type NOT IN {REFUSALS} ORDER BY time_ms DESC, place DESC LIMIT ?)
UNION ALL
SELECT item_id, event_type, time_ms FROM (
    SELECT item_id, event_type, time_ms FROM events WHERE user_id = ? AND event_type IN {REFUSALS}
    ORDER BY time_ms DESC, place DESC LIMIT {MAX_REFUSALS})
UNION ALL
SELECT (SELECT topics FROM topics WHERE user_id = ?), last_forgotten_ms, items_version FROM state
"""
_VISITOR_FORGOTTEN = _VISITOR.replace(
    "last_forgotten_ms",
    "(SELECT max(forgotten_ms) FROM forgotten WHERE user_hash IN (SELECT value FROM json_each(?)))",
)
"""The same where anyone was ever forgotten."""
_LATER = (
    "CREATE TABLE IF NOT EXISTS topics "
    "(user_id TEXT PRIMARY KEY, topics TEXT NOT NULL) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS hidden_items ON items (item_id) WHERE hidden",
    "CREATE INDEX IF NOT EXISTS refusals ON events (user_id, time_ms, place, item_id, event_type) "
    f"WHERE event_type IN {REFUSALS}",
)
"""Made when the store opens: files of earlier versions have none."""


class SqliteStore(OnlineStore):
    """See `OnlineStore`; threads may share it, and it works in a forked process."""

    def __init__(
        self, folder: Path, *, readonly: bool = False, timeout_ms: float = WRITE_TIMEOUT_MS
    ) -> None:
        """Open the files in a folder, which are made where they are not there.

        Args:
            readonly: Only read; then they must be there.
            timeout_ms: How long to wait for another writer.

        Raises:
            StoreError: They cannot be opened, are damaged or of another version.
        """
        path, self._forgets = folder / "events.db", False
        self._events = SqliteFile(
            path,
            version=VERSION,
            readonly=readonly,
            timeout_ms=timeout_ms,
            pragmas=() if readonly else PRAGMAS,
        )
        self._requests = DailyRequests(folder, readonly=readonly, timeout_ms=timeout_ms)
        if not readonly:
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                # A folder that this user may not even look into is said so too.
                self._events.create(_SCHEMA)
            except OSError as error:
                raise describe_failure(folder, error) from error
            with self._events.transaction() as database:
                # A folder that cannot be written is said at start, not at the first event.
                database.execute("UPDATE state SET items_version = items_version")
                for statement in _LATER:
                    database.execute(statement)
        self._folder, self._found_keys = folder, UserKeys()
        names = "SELECT DISTINCT substr(user_hash, 1, 9) FROM forgotten WHERE user_hash LIKE '%:%'"
        named = [name for (name,) in self._events.rows(names)]
        try:
            self._keys.check(named, path)
            if not readonly:
                UserKeys.make(folder)
        except ValueError as error:
            raise StoreError(str(error)) from error
        except OSError as error:
            raise describe_failure(folder, error) from error

    @property
    def _keys(self) -> UserKeys:
        """Keys of users' ids; a folder of an earlier version gets one from its first writer."""
        if not self._found_keys.keys:
            self._found_keys = UserKeys.read(self._folder)
        return self._found_keys

    def add_events(self, events: Sequence[Event]) -> list[bool]:
        if not events:
            return []
        oldest_ms = min(event.received_ms for event in events)
        with self._events.transaction() as database:
            ((last_forgotten_ms,),) = database.execute("SELECT last_forgotten_ms FROM state")
            if oldest_ms > last_forgotten_ms:
                database.execute("SAVEPOINT nothing_inserted")
                try:
                    _insert(database, events)
                    return [True] * len(events)
                except sqlite3.IntegrityError:
                    # Not the transaction: between two of them a user may be forgotten.
                    database.execute("ROLLBACK TO nothing_inserted")
            is_new = self._new_ones(database, events, last_forgotten_ms)
            _insert(database, [event for event, new in zip(events, is_new, strict=True) if new])
        return is_new

    def add_requests(self, records: Sequence[RequestRecord]) -> None:
        self._requests.add(records, self._not_forgotten)

    def _not_forgotten(self, records: Sequence[RequestRecord]) -> Sequence[RequestRecord]:
        """Leave out lists that were made before their user was forgotten."""
        ((last_forgotten_ms,),) = self._events.rows("SELECT last_forgotten_ms FROM state")
        if all(record.time_ms > last_forgotten_ms for record in records):
            return records
        forgotten = self.forgotten()
        return [
            record
            for record in records
            if record.user_id is None or record.time_ms > (forgotten.moment(record.user_id) or -1)
        ]

    def visitor(self, user_id: str | None, limit: int, before_ms: int | None = None) -> Visitor:
        if user_id is None:
            ((items_version,),) = self._events.rows("SELECT items_version FROM state")
            return Visitor(items_version=items_version)
        values = (user_id, END_OF_TIME if before_ms is None else before_ms, limit, user_id, user_id)
        if not self._forgets:
            rows = self._events.rows(_VISITOR, values)
            topics, last_ms, items_version = rows.pop()
            forgotten_ms, self._forgets = None, last_ms >= 0
        if self._forgets:
            hashes = json.dumps(self._keys.hashes(user_id))
            rows = self._events.rows(_VISITOR_FORGOTTEN, (*values, hashes))
            topics, forgotten_ms, items_version = rows.pop()
        found = [RecentEvent._make(row) for row in rows[::-1]]
        refusals = [event for event in found if event.event_type in REFUSAL_TYPES]
        return Visitor(
            events=found[len(refusals) :],
            forgotten_ms=forgotten_ms,
            items_version=items_version,
            refused=in_force(refusals),
            topics=topics or "",
        )

    def shown_items(self, user_id: str, since_ms: int) -> list[str]:
        rows = self._events.rows(
            "SELECT item_id FROM events WHERE user_id = ? AND event_type = 'impression' AND "
            "time_ms >= ?",
            (user_id, since_ms),
        )
        shown = dict.fromkeys(item_id for (item_id,) in rows)
        for record in self._requests.of_user(user_id, since_ms, MAX_SHOWN_LISTS):
            shown.update(dict.fromkeys(items_of(record.document)))
        return list(shown)

    def request(self, request_id: str) -> RequestRecord | None:
        return self._requests.find(request_id)

    def put_topics(self, user_id: str, topics: str) -> None:
        with self._events.transaction() as database:
            database.execute("DELETE FROM topics WHERE user_id = ?", (user_id,))
            if topics:
                database.execute("INSERT INTO topics VALUES (?, ?)", (user_id, topics))

    def change_items(self, changes: Mapping[str, bool]) -> int:
        hidden = [(item_id,) for item_id, hides in changes.items() if hides]
        shown = [(item_id,) for item_id, hides in changes.items() if not hides]
        with self._events.transaction() as database:
            database.executemany("INSERT OR REPLACE INTO items VALUES (?, 1, '{}')", hidden)
            database.executemany("DELETE FROM items WHERE item_id = ?", shown)
            database.execute("UPDATE state SET items_version = items_version + 1")
            ((version,),) = database.execute("SELECT items_version FROM state")
        return int(version)

    def hidden_items(self) -> tuple[int, list[str]]:
        rows = self._events.rows(
            "SELECT items_version, item_id FROM state LEFT JOIN items ON hidden ORDER BY item_id"
        )
        return rows[0][0], [item_id for _, item_id in rows if item_id is not None]

    def forget(self, user_id: str, now_ms: int) -> Forgotten:
        """See the protocol; where it fails halfway, call it again."""
        with self._events.transaction() as database:
            num_events = 0
            for kind in ("<>", "="):
                query = f"DELETE FROM events WHERE user_id = ? AND event_type {kind} 'impression'"
                num_events += database.execute(query, (user_id,)).rowcount
            database.execute("DELETE FROM topics WHERE user_id = ?", (user_id,))
            database.execute(
                "INSERT INTO forgotten VALUES (?, ?) ON CONFLICT DO UPDATE SET "
                "forgotten_ms = max(forgotten_ms, excluded.forgotten_ms)",
                (self._keys.hashes(user_id)[0], now_ms),
            )
            database.execute(
                "UPDATE state SET last_forgotten_ms = max(last_forgotten_ms, ?)", (now_ms,)
            )
        return Forgotten(num_events, self._requests.forget(user_id))

    def forgotten(self) -> ForgetList:
        rows = self._events.rows("SELECT user_hash, forgotten_ms FROM forgotten")
        return ForgetList(dict(rows), self._keys)

    def events_after(self, place: int, limit: int) -> list[tuple[int, Event]]:
        rows = self._events.rows(
            f"SELECT place, {_NAMES} FROM events WHERE place > ? ORDER BY place LIMIT ?",
            (place, limit),
        )
        return [(row[0], Event(*row[1:])) for row in rows]

    def requests_between(
        self, since_ms: int, before_ms: int, limit: int, after_id: str = ""
    ) -> list[RequestRecord]:
        return self._requests.between(since_ms, before_ms, limit, after_id)

    def remove_old(self, events_before_ms: int, requests_before_ms: int) -> None:
        """See the protocol; call it on another thread than the one that acknowledges events."""
        self._requests.remove_before(requests_before_ms)
        removed = REMOVED_A_COMMIT
        while removed == REMOVED_A_COMMIT:
            with self._events.transaction() as database:
                removed = database.execute(
                    "DELETE FROM events WHERE place IN (SELECT place FROM events WHERE "
                    "received_ms < ? ORDER BY received_ms LIMIT ?)",
                    (events_before_ms, REMOVED_A_COMMIT),
                ).rowcount
            time.sleep(PAUSE_SECONDS)

    def close(self) -> None:
        self._events.close()
        self._requests.close()

    def _new_ones(
        self, database: sqlite3.Connection, events: Sequence[Event], last_forgotten_ms: int
    ) -> list[bool]:
        """Find events that are to be stored: not there, not repeated, not forgotten."""
        known = set()
        is_there = "SELECT 1 FROM events WHERE event_id = ?"
        is_past = "SELECT 1 FROM forgotten WHERE user_hash = ? AND forgotten_ms >= ?"
        is_new = []
        for event in events:
            new = event.event_id not in known
            known.add(event.event_id)
            new = new and not database.execute(is_there, (event.event_id,)).fetchall()
            if new and event.received_ms <= last_forgotten_ms:
                new = not any(
                    database.execute(is_past, (one, event.received_ms)).fetchall()
                    for one in self._keys.hashes(event.user_id)
                )
            is_new.append(new)
        return is_new


def _insert(database: sqlite3.Connection, events: Sequence[Event]) -> None:
    """Insert events in their order."""
    begin = 0
    for size in ROWS_A_STATEMENT:
        while len(events) - begin >= size:
            some = events[begin : begin + size]
            database.execute(_INSERT[size], [value for event in some for value in _VALUES(event)])
            begin += size
