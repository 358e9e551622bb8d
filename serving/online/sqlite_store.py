"""The online store in SQLite: one file of events and items, and one file a day of served lists.

    events.db                 events, items, forgotten users (WAL, every commit reaches the disk)
    requests-YYYY-MM-DD.db    served lists of a day (WAL; the last ones may be lost with the power)

Any number of processes read and several may write; SQLite lets one write at a time. Connections
belong to one process and thread, and none is carried over a fork.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from datetime import UTC, datetime
from pathlib import Path

import orjson

from serving.online.events import Event
from serving.online.records import items_of, time_of
from serving.online.store import (
    Forgotten,
    ItemState,
    RecentEvent,
    RequestRecord,
    StoreError,
    Visitor,
)

SCHEMA_VERSION = 1
BUSY_MS = 5_000
"""How long a writer waits for another server's commit."""
REMOVED_AT_ONCE = 10_000
MAX_SHOWN_LISTS = 100
_FIELDS = (
    "event_id, user_id, item_id, event_type, time_ms, received_ms, value, request_id, slot, "
    "domain, session_id"
)
_SCHEMA = """
CREATE TABLE IF NOT EXISTS state (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    schema_version INTEGER, items_version INTEGER, num_forgotten INTEGER
);
INSERT OR IGNORE INTO state VALUES (1, {version}, 0, 0);
CREATE TABLE IF NOT EXISTS events (
    place INTEGER PRIMARY KEY AUTOINCREMENT, event_id TEXT NOT NULL UNIQUE,
    user_id TEXT NOT NULL, item_id TEXT NOT NULL, event_type TEXT NOT NULL,
    time_ms INTEGER NOT NULL, received_ms INTEGER NOT NULL,
    value REAL, request_id TEXT, slot INTEGER, domain TEXT, session_id TEXT
);
CREATE INDEX IF NOT EXISTS histories ON events (user_id, time_ms, place)
    WHERE event_type != 'impression';
CREATE INDEX IF NOT EXISTS impressions ON events (user_id, time_ms)
    WHERE event_type = 'impression';
CREATE TABLE IF NOT EXISTS items (
    item_id TEXT PRIMARY KEY, hidden INTEGER NOT NULL, properties TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS forgotten (
    user_hash TEXT PRIMARY KEY, forgotten_ms INTEGER NOT NULL
) WITHOUT ROWID;
"""
_REQUESTS = """
CREATE TABLE IF NOT EXISTS requests (
    request_id TEXT PRIMARY KEY, user_id TEXT, time_ms INTEGER NOT NULL, document BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS by_user ON requests (user_id, time_ms) WHERE user_id IS NOT NULL;
"""
_INSERT = f"INSERT OR IGNORE INTO events ({_FIELDS}) "
_COLUMNS = ", ".join(f"value ->> {place}" for place in range(11))
_INSERT_MANY = f"{_INSERT} SELECT {_COLUMNS} FROM json_each(?)"
_INSERT_ONE = f"{_INSERT} VALUES ({', '.join('?' * 11)})"
_HISTORY = (
    "SELECT item_id, event_type, time_ms FROM events WHERE user_id = ? AND "
    "event_type != 'impression' AND time_ms < ? ORDER BY time_ms DESC, place DESC LIMIT ?"
)
END_OF_TIME = 1 << 62


class SqliteStore:
    """See `OnlineStore`."""

    def __init__(self, folder: Path, *, timeout_ms: float = BUSY_MS) -> None:
        """Open the files in a folder, which is made where it is not there.

        Raises:
            StoreError: They cannot be opened, or are of another version.
        """
        self._folder, self._timeout_ms = folder, timeout_ms
        self._own = threading.local()
        with _explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._events()

    def add_events(self, events: Sequence[Event]) -> list[bool]:
        rows = [astuple(event) for event in events]
        with _explained(self._folder), self._writing() as database:
            (before,) = database.execute("SELECT ifnull(max(place), 0) FROM events").fetchone()
            text = orjson.dumps(rows)
            if rb"\u0000" in text:
                # SQLite's JSON ends a text at NUL.
                database.executemany(_INSERT_ONE, rows)
            else:
                # One statement, so that Python's lock is given away once and not for each row.
                database.execute(_INSERT_MANY, (text.decode(),))
            found = database.execute("SELECT event_id FROM events WHERE place > ?", (before,))
            new = {event_id for (event_id,) in found}
        # Of equal ids the first is the one that is stored.
        first = {event.event_id: place for place, event in reversed(list(enumerate(events)))}
        return [
            event.event_id in new and first[event.event_id] == place
            for place, event in enumerate(events)
        ]

    def add_requests(self, records: Sequence[RequestRecord]) -> None:
        by_day: dict[str, list[tuple[str, str | None, int, bytes]]] = {}
        for record in records:
            row = (record.request_id, record.user_id, record.time_ms, record.document)
            by_day.setdefault(_day(record.time_ms), []).append(row)
        for day, rows in by_day.items():
            with _explained(self._folder):
                database = self._requests(day, create=True)
                assert database is not None
                with _transaction(database):
                    database.executemany("INSERT OR IGNORE INTO requests VALUES (?, ?, ?, ?)", rows)

    def visitor(self, user_id: str | None, limit: int, before_ms: int | None = None) -> Visitor:
        with _explained(self._folder):
            database = self._events()
            version, num_forgotten = database.execute(
                "SELECT items_version, num_forgotten FROM state"
            ).fetchone()
            if user_id is None:
                return Visitor(items_version=version)
            before_ms = END_OF_TIME if before_ms is None else before_ms
            rows = database.execute(_HISTORY, (user_id, before_ms, limit)).fetchall()
            forgotten = None
            if num_forgotten:
                query = "SELECT forgotten_ms FROM forgotten WHERE user_hash = ?"
                found = database.execute(query, (_hash(user_id),)).fetchone()
                forgotten = None if found is None else found[0]
        return Visitor([RecentEvent(*row) for row in reversed(rows)], forgotten, version)

    def shown_items(self, user_id: str, since_ms: int) -> list[str]:
        with _explained(self._folder):
            found = self._events().execute(
                "SELECT item_id FROM events WHERE user_id = ? AND event_type = 'impression' AND "
                "time_ms >= ?",
                (user_id, since_ms),
            )
            shown = dict.fromkeys(item_id for (item_id,) in found)
        for record in self.requests_of(user_id, since_ms, MAX_SHOWN_LISTS):
            shown.update(dict.fromkeys(items_of(record.document)))
        return list(shown)

    def request(self, request_id: str) -> RequestRecord | None:
        with _explained(self._folder):
            database = self._requests(_day(time_of(request_id)))
            if database is None:
                return None
            query = "SELECT request_id, time_ms, user_id, document FROM requests WHERE request_id=?"
            found = database.execute(query, (request_id,)).fetchone()
        return None if found is None else RequestRecord(*found)

    def requests_of(self, user_id: str, since_ms: int, limit: int) -> list[RequestRecord]:
        first = _day(since_ms)
        found: list[tuple[str, int, str | None, bytes]] = []
        with _explained(self._folder):
            for day in reversed(self._days()):
                if day < first or len(found) >= limit:
                    break
                if (database := self._requests(day)) is not None:
                    found += database.execute(
                        "SELECT request_id, time_ms, user_id, document FROM requests WHERE "
                        "user_id = ? AND time_ms >= ? ORDER BY time_ms DESC LIMIT ?",
                        (user_id, since_ms, limit - len(found)),
                    ).fetchall()
        return [RequestRecord(*row) for row in found]

    def change_items(self, changes: Mapping[str, ItemState | None]) -> int:
        kept = [
            (item_id, state.hidden, orjson.dumps(dict(state.properties)).decode())
            for item_id, state in changes.items()
            if state is not None
        ]
        reset = [(item_id,) for item_id, state in changes.items() if state is None]
        with _explained(self._folder), self._writing() as database:
            database.executemany("INSERT OR REPLACE INTO items VALUES (?, ?, ?)", kept)
            database.executemany("DELETE FROM items WHERE item_id = ?", reset)
            database.execute("UPDATE state SET items_version = items_version + 1")
            (version,) = database.execute("SELECT items_version FROM state").fetchone()
        return int(version)

    def items(self) -> tuple[int, Mapping[str, ItemState]]:
        with _explained(self._folder), _transaction(self._events(), "BEGIN") as database:
            (version,) = database.execute("SELECT items_version FROM state").fetchone()
            rows = database.execute("SELECT item_id, hidden, properties FROM items").fetchall()
        found = {
            item_id: ItemState(bool(hidden), orjson.loads(properties))
            for item_id, hidden, properties in rows
        }
        return version, found

    def forget(self, user_id: str, now_ms: int) -> Forgotten:
        with _explained(self._folder):
            with self._writing() as database:
                deleted = database.execute("DELETE FROM events WHERE user_id = ?", (user_id,))
                num_events = deleted.rowcount
                row = (_hash(user_id), now_ms)
                database.execute("INSERT OR REPLACE INTO forgotten VALUES (?, ?)", row)
                database.execute(
                    "UPDATE state SET num_forgotten = (SELECT count(*) FROM forgotten)"
                )
            num_requests = 0
            for day in self._days():
                if (requests := self._requests(day)) is not None:
                    with _transaction(requests):
                        deleted = requests.execute(
                            "DELETE FROM requests WHERE user_id = ?", (user_id,)
                        )
                    num_requests += deleted.rowcount
        return Forgotten(num_events, num_requests)

    def forgotten(self) -> Mapping[str, int]:
        with _explained(self._folder):
            return dict(self._events().execute("SELECT user_hash, forgotten_ms FROM forgotten"))

    def events_after(self, place: int, limit: int) -> list[tuple[int, Event]]:
        query = f"SELECT place, {_FIELDS} FROM events WHERE place > ? ORDER BY place LIMIT ?"
        with _explained(self._folder):
            rows = self._events().execute(query, (place, limit)).fetchall()
        return [(row[0], Event(*row[1:])) for row in rows]

    def requests_between(
        self, since_ms: int, before_ms: int, limit: int, after_id: str = ""
    ) -> list[RequestRecord]:
        first, last = _day(since_ms), _day(max(since_ms, before_ms - 1))
        found: list[tuple[str, int, str | None, bytes]] = []
        with _explained(self._folder):
            for day in self._days():
                database = self._requests(day) if first <= day <= last else None
                if database is not None and len(found) < limit:
                    found += database.execute(
                        "SELECT request_id, time_ms, user_id, document FROM requests WHERE "
                        "time_ms >= ? AND time_ms < ? AND request_id > ? ORDER BY request_id "
                        "LIMIT ?",
                        (since_ms, before_ms, after_id, limit - len(found)),
                    ).fetchall()
        return [RequestRecord(*row) for row in found]

    def remove_old(self, events_before_ms: int, requests_before_ms: int) -> None:
        removed = REMOVED_AT_ONCE
        while removed == REMOVED_AT_ONCE:
            with _explained(self._folder), self._writing() as database:
                removed = database.execute(
                    "DELETE FROM events WHERE place IN (SELECT place FROM events WHERE "
                    "received_ms < ? ORDER BY place LIMIT ?)",
                    (events_before_ms, REMOVED_AT_ONCE),
                ).rowcount
        with _explained(self._folder):
            for day in self._days():
                if day < _day(requests_before_ms):
                    for path in self._folder.glob(f"requests-{day}.db*"):
                        path.unlink(missing_ok=True)

    def close(self) -> None:
        own, self._own = self._own, threading.local()
        for database in getattr(own, "databases", {}).values():
            database.close()

    def _days(self) -> list[str]:
        """Name the days with served lists, ascending."""
        return sorted(
            path.name.removeprefix("requests-").removesuffix(".db")
            for path in self._folder.glob("requests-????-??-??.db")
        )

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with _transaction(self._events()) as database:
            yield database

    def _events(self) -> sqlite3.Connection:
        found = self._connections().get("events")
        return found if found is not None else self._opened("events", "events.db", self._prepare)

    def _requests(self, day: str, *, create: bool = False) -> sqlite3.Connection | None:
        """Open a day's served lists; None where there are none."""
        path = self._folder / f"requests-{day}.db"
        if not create and not path.exists():
            return None
        found = self._connections().get(day)
        if found is None:
            found = self._opened(day, path.name, _prepare_requests)
        return found

    def _connections(self) -> dict[str, sqlite3.Connection]:
        """Give this process's and thread's connections."""
        if getattr(self._own, "pid", 0) != os.getpid():
            # Those of the process before a fork are left alone: closing them would end its locks.
            self._own.inherited = getattr(self._own, "databases", None)
            self._own.pid, self._own.databases = os.getpid(), {}
        found: dict[str, sqlite3.Connection] = self._own.databases
        return found

    def _opened(self, name: str, file: str, prepare: object) -> sqlite3.Connection:
        database = sqlite3.connect(
            self._folder / file, timeout=self._timeout_ms / 1_000, isolation_level=None
        )
        try:
            prepare(database)  # type: ignore[operator]
        except BaseException:
            database.close()
            raise
        self._connections()[name] = database
        return database

    def _prepare(self, database: sqlite3.Connection) -> None:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        there = database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if not there:
            with _transaction(database):
                for statement in _SCHEMA.format(version=SCHEMA_VERSION).split(";\n"):
                    if statement.strip():
                        database.execute(statement)
        (version,) = database.execute("SELECT schema_version FROM state").fetchone()
        if version != SCHEMA_VERSION:
            raise StoreError(
                f"the online store {self._folder} is of version {version}, this program reads "
                f"{SCHEMA_VERSION}; start the version that wrote it, or name another folder"
            )


def _prepare_requests(database: sqlite3.Connection) -> None:
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    database.executescript(_REQUESTS)


@contextmanager
def _transaction(
    database: sqlite3.Connection, begin: str = "BEGIN IMMEDIATE"
) -> Iterator[sqlite3.Connection]:
    database.execute(begin)
    try:
        yield database
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Say what is wrong with the files."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        hint = next((hint for part, hint in _HINTS.items() if part in str(error)), "see its files")
        raise StoreError(f"the online store {folder}: {error}; {hint}") from error
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"the online store {folder}: {error}; see its files") from error


_HINTS = {
    "disk is full": "free some space on its disk",
    "disk I/O error": "see whether its disk is full or broken",
    "locked": "another server writes to it for too long",
    "readonly": "let this user write to it, or name another folder with --store",
    "unable to open": "let this user write to its folder, or name another one with --store",
    "not a database": "put the file aside, or restore it from a copy",
    "malformed": "put the file aside, or restore it from a copy",
}


def _day(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1_000, UTC):%Y-%m-%d}"


def _hash(user_id: str) -> str:
    return hashlib.sha256(user_id.encode()).hexdigest()
