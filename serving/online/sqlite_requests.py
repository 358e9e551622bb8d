"""Served lists in SQLite, a file a day, so that old lists are a file to unlink.

The day is read from the id of a list, whose first 12 hexadecimal digits are unix milliseconds.
Documents are compressed: at 250 lists a second they are what fills a disk.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

from serving.online.sqlite_files import FILES_LOCK, SqliteFile, describe_failure
from serving.online.store import RequestRecord, StoreError, first_id, time_of

VERSION = 1
MAX_OPEN = 16
"""Days whose files stay open in a process."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SCHEMA = """
CREATE TABLE requests (
    request_id TEXT PRIMARY KEY, time_ms INTEGER NOT NULL, user_id TEXT, document BLOB NOT NULL
);
CREATE INDEX requests_of_user ON requests (user_id, time_ms) WHERE user_id IS NOT NULL;
"""
# The last lists before a power cut may be lost; the file stays whole.
PRAGMAS = ("synchronous = NORMAL", "secure_delete = ON")
Filter = Callable[[Sequence[RequestRecord]], Sequence[RequestRecord]]


class DailyRequests:
    """Served lists of every day in a folder."""

    def __init__(self, folder: Path, *, readonly: bool, timeout_ms: float) -> None:
        self._folder, self._readonly, self._timeout_ms = folder, readonly, timeout_ms
        self._files: dict[str, tuple[int, SqliteFile]] = {}
        """Open files by day; changed under `FILES_LOCK`."""

    def add(self, records: Sequence[RequestRecord], wanted: Filter) -> None:
        """Keep lists whose ids are new.

        Args:
            wanted: Chooses among them while no process can remove any: a user who is forgotten
                by another process meanwhile is known to it, or its removal comes after.
        """
        by_day: dict[str, list[RequestRecord]] = {}
        for record in records:
            packed = record._replace(document=zlib.compress(record.document, 1))
            by_day.setdefault(_day(time_of(record.request_id)), []).append(packed)
        for day, packed_of_day in by_day.items():
            file = self._file(day, create=True)
            assert file is not None
            with file.transaction() as database:
                rows = wanted(packed_of_day)
                database.executemany("INSERT OR IGNORE INTO requests VALUES (?, ?, ?, ?)", rows)

    def find(self, request_id: str) -> RequestRecord | None:
        """Find a list; None for any text that is none's id."""
        try:
            file = self._file(_day(time_of(request_id)))
        except ValueError:
            return None
        found = [] if file is None else _read(file, "request_id = ?", (request_id,))
        return found[0] if found else None

    def of_user(self, user_id: str, since_ms: int, limit: int) -> list[RequestRecord]:
        """List a user's lists, newest first."""
        found: list[RequestRecord] = []
        for file in self._existing(since_ms, newest_first=True):
            if len(found) >= limit:
                break
            found += _read(
                file,
                "user_id = ? AND time_ms >= ? ORDER BY time_ms DESC, request_id DESC LIMIT ?",
                (user_id, since_ms, limit - len(found)),
            )
        return found

    def between(
        self, since_ms: int, before_ms: int, limit: int, after_id: str
    ) -> list[RequestRecord]:
        """Read lists in the order of their ids."""
        found: list[RequestRecord] = []
        bounds = (max(first_id(since_ms), after_id), after_id, first_id(before_ms))
        for file in self._existing(since_ms):
            if len(found) >= limit or file.path.name > _name(_day(before_ms - 1)):
                break
            found += _read(
                file,
                "request_id >= ? AND request_id > ? AND request_id < ? ORDER BY request_id LIMIT ?",
                (*bounds, limit - len(found)),
            )
        return found

    def forget(self, user_id: str) -> int:
        """Remove a user's lists; gives how many there were."""
        num_removed = 0
        for file in self._existing():
            with file.transaction() as database:
                query = "DELETE FROM requests WHERE user_id = ?"
                num_removed += database.execute(query, (user_id,)).rowcount
        return num_removed

    def remove_before(self, before_ms: int) -> None:
        """Unlink files of days that ended before a time."""
        for day in self._days():
            if day < _day(before_ms):
                self._drop(day)
                path = self._folder / _name(day)
                try:
                    # SQLite does not read the WAL of a file that is not there.
                    for part in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
                        part.unlink(missing_ok=True)
                except OSError as error:
                    raise describe_failure(path, error) from error

    def close(self) -> None:
        """Close connections."""
        for day in list(self._files):
            self._drop(day)

    def _days(self) -> list[str]:
        names = (path.name for path in self._folder.glob(_name("????-??-??")))
        return sorted(name.removeprefix("requests-").removesuffix(".db") for name in names)

    def _existing(self, since_ms: int = 0, *, newest_first: bool = False) -> Iterator[SqliteFile]:
        first = _day(since_ms)
        for day in sorted(self._days(), reverse=newest_first):
            if day >= first and (file := self._file(day)) is not None:
                yield file

    def _file(self, day: str, *, create: bool = False) -> SqliteFile | None:
        """Return a day's file, None if there is none."""
        with FILES_LOCK:
            path = self._folder / _name(day)
            held = self._files.get(day)
            try:
                inode = path.stat().st_ino
            except FileNotFoundError:
                self._drop(day)
                if not create:
                    return None
            else:
                # Another server may have removed the file that is held, and begun it again.
                if held is not None and held[0] == inode:
                    return held[1]
                self._drop(day)
            while len(self._files) >= MAX_OPEN:
                self._drop(min(self._files))
            file = SqliteFile(
                path,
                version=VERSION,
                readonly=self._readonly,
                timeout_ms=self._timeout_ms,
                pragmas=() if self._readonly else PRAGMAS,
            )
            if create:
                file.create(SCHEMA)
                inode = path.stat().st_ino
            self._files[day] = (inode, file)
            return file

    def _drop(self, day: str) -> None:
        with FILES_LOCK:
            held = self._files.pop(day, None)
            if held is not None:
                held[1].close()


def _name(day: str) -> str:
    return f"requests-{day}.db"


def _day(time_ms: int) -> str:
    """Return the day of a time in UTC; times before 1970 and after 9999 count as those days."""
    return _date(min(max(time_ms, 0), 253_402_300_799_999) // 86_400_000)


@lru_cache(maxsize=100)
def _date(days: int) -> str:
    """Write the date that is so many days after 1970 began."""
    return f"{EPOCH + timedelta(days=days):%Y-%m-%d}"


def _read(file: SqliteFile, where: str, values: Sequence[Any]) -> list[RequestRecord]:
    """Read lists of a day; none if another thread or server has removed its file."""
    columns = "request_id, time_ms, user_id, document"
    try:
        rows = file.rows(f"SELECT {columns} FROM requests WHERE {where}", values)
    except StoreError:
        if file.path.exists():
            raise
        return []
    return [
        RequestRecord(request_id, time_ms, user_id, zlib.decompress(packed))
        for request_id, time_ms, user_id, packed in rows
    ]
