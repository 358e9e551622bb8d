"""The online store that a server's settings name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from logging import WARNING

from serving.log import log
from serving.online.opening import NO_STORE, open_store
from serving.online.store import OnlineStore, StoreError
from serving.online.writer import EventWriter
from serving.settings import Settings


def store_opener(settings: Settings) -> Callable[[], OnlineStore | None]:
    """Give what opens the store, in a process that only reads it."""
    url, timeout_ms = settings.store_url, settings.store_timeout_ms
    return lambda: open_store(url, timeout_ms=timeout_ms, readonly=True)


def open_writer(settings: Settings) -> tuple[Settings, EventWriter | None]:
    """Open the store for writing.

    Returns:
        The settings, without a store where the default one cannot be written, and its writer.

    Raises:
        ValueError: The store that was named cannot be opened; says what to do.
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
