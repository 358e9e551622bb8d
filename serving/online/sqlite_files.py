"""One SQLite file, and what can go wrong with it as sentences: the only place that opens one.

Files are in WAL mode: readers see the last commit and never wait for the one writer.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

from serving.online.store import StoreError

APPLICATION = 0x72656373
"""Marks the files of an online store among others of SQLite: "recs"."""
PARTIAL = ".partial-"
HEADER = 16
MAGIC = b"SQLite format 3\x00"

_HINTS = {
    "FULL": "its disk is full; free some space, nothing that was acknowledged is lost",
    "BUSY": "another process is writing to it for too long; see which one, and try again",
    "LOCKED": "another process is writing to it for too long; see which one, and try again",
    "CORRUPT": "it is damaged; put it aside or restore a copy, it is never changed or deleted",
    "NOTADB": "it is no SQLite file; put it aside or restore a copy, it is never deleted",
    "READONLY": "it cannot be written; let this user write to its folder, or name another store",
    "PERM": "this user may not open it; let them, or name another store",
    "CANTOPEN": "it cannot be opened; let this user write to its folder, or name another store",
    "IOERR": "its disk is full or fails, or a limit on file sizes was met; see the system's log",
}

FILES_LOCK = threading.RLock()
"""Held while it changes which files are open; taken before the lock of a file, never after."""
_all: WeakSet[SqliteFile] = WeakSet()
_held_over_fork: list[SqliteFile] = []


class SqliteFile:
    """A connection to one file, opened when it is needed; threads take turns.

    It is closed before a fork and opened again in both processes: SQLite's locks belong to a
    process, and a child that uses its parent's damages the file.
    """

    def __init__(
        self,
        path: Path,
        *,
        version: int,
        readonly: bool,
        timeout_ms: float,
        pragmas: Sequence[str] = (),
    ) -> None:
        """Prepare a file; `create` makes it, `rows` and `transaction` open it.

        Args:
            version: Of its schema; a file of another one is refused.
            timeout_ms: How long to wait for another writer.
            pragmas: To be set on each connection.
        """
        self.path = path
        self._version, self._pragmas, self._seconds = version, pragmas, timeout_ms / 1_000
        self._mode = "ro" if readonly else "rw"
        self._lock = threading.RLock()
        self._database: sqlite3.Connection | None = None
        _all.add(self)

    def create(self, schema: str) -> None:
        """Make the file with its schema, whole or not at all, where it is not there.

        Raises:
            StoreError: It cannot be written.
        """
        if self.path.exists():
            return
        partial = self.path.with_name(f"{PARTIAL}{os.getpid()}-{self.path.name}")
        try:
            partial.unlink(missing_ok=True)
            database = sqlite3.connect(partial, isolation_level=None)
            try:
                database.executescript(
                    f"PRAGMA journal_mode = WAL; BEGIN; {schema} "
                    f"PRAGMA application_id = {APPLICATION}; "
                    f"PRAGMA user_version = {self._version}; COMMIT;"
                )
            finally:
                database.close()
            # Of two processes that make it at once, one wins and both use its file.
            with suppress(FileExistsError):
                os.link(partial, self.path)
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except (OSError, sqlite3.Error) as error:
            raise describe_failure(self.path, error) from error
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """Read rows by one statement, which sees one state of the file.

        Raises:
            StoreError: They cannot be read.
        """
        with self._lock:
            try:
                return (self._database or self._open()).execute(query, values).fetchall()
            except (sqlite3.Error, UnicodeError) as error:
                raise describe_failure(self.path, error) from error

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run statements that count together or not at all.

        Raises:
            StoreError: One of them, or the commit, failed; nothing was changed.
        """
        with self._lock:
            try:
                database = self._database or self._open()
                database.execute("BEGIN IMMEDIATE")
                try:
                    yield database
                    database.execute("COMMIT")
                except BaseException:
                    # Some failures have ended the transaction already.
                    if database.in_transaction:
                        database.execute("ROLLBACK")
                    raise
            except (sqlite3.Error, UnicodeError) as error:
                raise describe_failure(self.path, error) from error

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        with self._lock:
            database, self._database = self._database, None
            if database is not None:
                # What cannot be moved from the WAL to the file stays in the WAL.
                with suppress(sqlite3.Error):
                    database.close()

    def _open(self) -> sqlite3.Connection:
        try:
            with self.path.open("rb") as file:
                begins = file.read(HEADER)
        except OSError as error:
            raise describe_failure(self.path, error) from error
        if begins != MAGIC:
            raise StoreError(f"online store {self.path}: {_HINTS['NOTADB']}")
        database = sqlite3.connect(
            f"{self.path.absolute().as_uri()}?mode={self._mode}",
            uri=True,
            timeout=self._seconds,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            (application,) = database.execute("PRAGMA application_id").fetchone()
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if (application, version) != (APPLICATION, self._version):
                raise StoreError(
                    f"online store {self.path} has application id {application} and version "
                    f"{version} where {APPLICATION} and {self._version} are needed; start the "
                    "release that wrote it, or name another folder with --store"
                )
            for pragma in self._pragmas:
                database.execute(f"PRAGMA {pragma}")
            # The first reading of a table finds a file that was cut off.
            database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except BaseException:
            database.close()
            raise
        self._database = database
        return database


def describe_failure(path: Path, error: Exception) -> StoreError:
    """Describe the fault of a file, and the remedy."""
    if isinstance(error, UnicodeError):
        return StoreError(f"online store {path}: an id is no Unicode text: {error}")
    kind = getattr(error, "sqlite_errorname", "").removeprefix("SQLITE_").partition("_")[0]
    if isinstance(error, PermissionError):
        kind = "PERM"
    hint = _HINTS.get(kind)
    return StoreError(f"online store {path}: {error if hint is None else f'{hint} ({error})'}")


def _before_fork() -> None:
    FILES_LOCK.acquire()
    # Lists first: their writer reads who was forgotten in events.db.
    for file in sorted(_all, key=lambda one: one.path.name, reverse=True):
        file._lock.acquire()
        _held_over_fork.append(file)
        file.close()


def _after_fork() -> None:
    while _held_over_fork:
        _held_over_fork.pop()._lock.release()
    FILES_LOCK.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
