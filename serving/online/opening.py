"""Open an online store by its address."""

from __future__ import annotations

from pathlib import Path

from serving.online.store import OnlineStore

REDIS = ("redis://", "rediss://", "unix://")


def open_store(url: str, *, timeout_ms: float = 50.0) -> OnlineStore | None:
    """Open ``sqlite:FOLDER``, ``redis://HOST:PORT/0`` (also rediss, unix); None for ``none``.

    Args:
        timeout_ms: How long one reading may take where others write, or the network is slow.

    Raises:
        ValueError: It is no address of a store.
        StoreError: The store cannot be opened; says what to do.
    """
    if url == "none":
        return None
    kind, _, place = url.partition(":")
    if kind == "sqlite" and place:
        from serving.online.sqlite_store import SqliteStore

        return SqliteStore(Path(place))
    raise ValueError(
        f"store {url!r} is no online store; write sqlite:FOLDER, redis://HOST:PORT/0 or none"
    )
