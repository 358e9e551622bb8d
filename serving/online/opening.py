"""Open an online store by its address."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from pathlib import Path

from serving.online.sqlite_store import SqliteStore
from serving.online.store import OnlineStore

NO_STORE = "none"
REDIS = ("redis://", "rediss://", "unix://")
READ_TIMEOUT_MS = 50.0


def open_store(
    url: str, *, timeout_ms: float = READ_TIMEOUT_MS, readonly: bool = False
) -> OnlineStore | None:
    """Open ``sqlite:FOLDER``, ``redis://HOST:PORT/0`` (also rediss, unix); None for ``none``.

    Args:
        timeout_ms: How long one reading may wait. Writing into SQLite waits longer for other
            servers, see `SqliteStore`.
        readonly: Where it is only read, and SQLite's files are there.

    Raises:
        ValueError: It is no address of a store.
        StoreError: The store cannot be opened; says what to do.
    """
    if url == NO_STORE:
        return None
    if url.startswith(REDIS):
        from serving.online.redis_store import RedisStore

        return RedisStore.open(url, timeout_ms)
    kind, _, place = url.partition(":")
    if kind != "sqlite" or not place or place.startswith("//"):
        raise ValueError(
            f"store {url!r} is no online store; write sqlite:FOLDER, redis://HOST:PORT/0 "
            "(also rediss://, unix://) or none"
        )
    if readonly:
        return SqliteStore(Path(place), readonly=True, timeout_ms=timeout_ms)
    return SqliteStore(Path(place))


def import_store(url: str) -> None:
    """Import what a store needs, in a process whose children open it: redis-py takes .2 s."""
    if url.startswith(REDIS):
        # Where it is not installed, opening says so.
        with suppress(ModuleNotFoundError):
            import_module("serving.online.redis_connection")
