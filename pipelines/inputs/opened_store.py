"""Export what the online store of an address collected."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pipelines.inputs.online_events import ExportReport, export_events, export_requests
from serving.online.opening import SQLITE, open_store
from serving.online.store import OnlineStore, StoreError

TIMEOUT_MS = 10_000.0


class UnreadableStoreError(ValueError):
    """The store did not answer or is broken; it may answer later."""


class StoreReport(NamedTuple):
    """Reports of an export."""

    events: ExportReport
    requests: ExportReport
    records: ExportReport | None = None


def export_store(url: str, out: Path, *, records: bool = False) -> StoreReport:
    """Write events and served lists that are new."""
    with opened(url) as store:
        # Lists first: an event that a list was made of is exported then too.
        lists = export_requests(store, out)
        whole = export_requests(store, out, whole=True) if records else None
        return StoreReport(export_events(store, out), lists, whole)


@contextmanager
def opened(url: str) -> Iterator[OnlineStore]:
    """Open the store of an address until the block ends."""
    place = Path(url.removeprefix(SQLITE))
    if url.startswith(SQLITE) and not place.is_dir():
        raise ValueError(
            f"there is no online store in {place}; it is made by the first recsys serve, in the "
            "folder online of the run's workspace unless --store says otherwise"
        )
    try:
        store = open_store(url, timeout_ms=TIMEOUT_MS, readonly=True)
        if store is None:
            raise ValueError(f"store {url!r} holds nothing; name sqlite:FOLDER or redis://HOST")
        try:
            yield store
        finally:
            store.close()
    except StoreError as error:
        raise UnreadableStoreError(f"cannot read the online store {url}: {error}") from error
