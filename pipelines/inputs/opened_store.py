"""The online store of an address: its export, and the users that it has forgotten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from features.forget_list import ForgetList
from features.reading.databases import masked
from pipelines.config.run import RunConfig
from pipelines.engine.forgotten import add_to_list, list_path
from pipelines.engine.workspace import bundles_dir
from pipelines.inputs.exported import Exported
from pipelines.inputs.online_events import ExportReport, export_events, export_requests
from serving.online.opening import SQLITE, is_store, open_store
from serving.online.store import OnlineStore, StoreError

TIMEOUT_MS = 10_000.0


class UnreadableStoreError(ValueError):
    """The store did not answer or is broken; it may answer later."""


class StoreReport(NamedTuple):
    """Reports of an export."""

    events: ExportReport
    requests: ExportReport


def export_store(url: str, out: Path) -> StoreReport:
    """Write events and served lists that are new."""
    with opened(url) as store:
        # Lists first: an event that a list was made of is exported then too.
        lists = export_requests(store, out)
        return StoreReport(export_events(store, out), lists)


@contextmanager
def opened(url: str, *, readonly: bool = True) -> Iterator[OnlineStore]:
    """Open the store of an address until the block ends; one that is written may be new."""
    place = Path(url.removeprefix(SQLITE))
    if readonly and url.startswith(SQLITE) and not place.is_dir():
        raise ValueError(
            f"there is no online store in {place}; it is made by the first recsys serve, in the "
            "folder online of the run's workspace unless --store says otherwise"
        )
    try:
        store = open_store(url, timeout_ms=TIMEOUT_MS, readonly=readonly)
        if store is None:
            raise ValueError(f"store {url!r} holds nothing; name sqlite:FOLDER or redis://HOST")
        try:
            yield store
        finally:
            store.close()
    except StoreError as error:
        raise UnreadableStoreError(f"cannot read the store {masked(url)}: {error}") from error


def with_forgotten(config: RunConfig) -> RunConfig:
    """Add to the list whom the online store, or the export that is read, has forgotten.

    Returns:
        The configuration with the list's place, which a run's other workspaces read too.
    """
    path, place = list_path(config).absolute(), config.data.online_events
    if place is not None:
        add_to_list(path, _forgotten_in(place))
    return replace(config, data=replace(config.data, forgotten=path))


def _forgotten_in(place: str) -> ForgetList:
    if not is_store(place):
        return Exported.read(Path(place)).forgotten
    with opened(place) as store:
        return store.forgotten()


def find_store(config: RunConfig) -> str | None:
    """Return the address of a run's online store, by default the folder next to its bundles."""
    place = config.data.online_events
    if place is not None and is_store(place):
        return place
    folder = bundles_dir(config).parent / "online"
    return f"{SQLITE}{folder}" if (folder / "events.db").exists() else None


def forget_in_store(url: str, user_ids: Sequence[str], now_ms: int) -> dict[str, int]:
    """Forget users in an online store; return the removed rows by where they were."""
    removed: Counter[str] = Counter()
    try:
        store = open_store(url, timeout_ms=TIMEOUT_MS)
        if store is None:
            return {}
        try:
            for user_id in user_ids:
                gone = store.forget(user_id, now_ms)
                removed["events of the online store"] += gone.num_events
                removed["lists of the online store"] += gone.num_requests
        finally:
            store.close()
    except StoreError as error:
        raise ValueError(
            f"the list has them, and the online store {url} does not know it: {error}; run it again"
        ) from error
    return dict(removed)
