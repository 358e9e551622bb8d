"""Open an online store, by its address or as a server's settings name it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from logging import WARNING
from pathlib import Path

from serving.log import log
from serving.online.sqlite_store import SqliteStore
from serving.online.store import OnlineStore, StoreError
from serving.online.writer import EventWriter
from serving.settings import Settings

NO_STORE = "none"
SQLITE = "sqlite:"
REDIS = ("redis:", "rediss:", "unix:")
READ_TIMEOUT_MS = 50.0


def is_store(text: str) -> bool:
    """True if a text is the address of a store, and not a path."""
    return text.startswith((SQLITE, *REDIS))


def open_store(
    url: str, *, timeout_ms: float = READ_TIMEOUT_MS, readonly: bool = False
) -> OnlineStore | None:
    """Open ``sqlite:FOLDER``, ``redis://HOST:PORT/0`` (also rediss, unix); None for ``none``.

    Args:
        timeout_ms: How long one reading may wait. Who writes into SQLite waits longer for other
            servers, see `SqliteStore`.
        readonly: Where it is only read; SQLite's files must be there, and nothing is written.

    Raises:
        ValueError: It is no address of a store.
        StoreError: The store cannot be opened; says what to do.
    """
    if url == NO_STORE:
        return None
    if url.startswith(tuple(f"{scheme}//" for scheme in REDIS)):
        from serving.online.redis_store import RedisStore

        return RedisStore.open(url, timeout_ms)
    place = url.removeprefix(SQLITE)
    if place in ("", url) or place.startswith("//"):
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


def store_opener(settings: Settings) -> Callable[[], OnlineStore | None]:
    """Return the opener of the store, in a process that only reads it."""
    url, timeout_ms = settings.store_url, settings.store_timeout_ms
    return lambda: open_store(url, timeout_ms=timeout_ms, readonly=True)


def open_writer(settings: Settings) -> tuple[Settings, EventWriter | None]:
    """Open the store for writing.

    Returns:
        The settings, without a store where the default one cannot be written, and its writer.
    """
    try:
        store = open_store(settings.store_url, timeout_ms=settings.store_timeout_ms)
    except StoreError as error:
        if settings.store is not None:
            raise ValueError(str(error)) from None
        log("store_off", {"store": settings.store_url, "error": str(error)}, level=WARNING)
        return replace(settings, store=NO_STORE), None
    if store is None:
        return settings, None
    return settings, EventWriter(store, event_days=settings.event_days, log_days=settings.log_days)
