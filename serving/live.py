"""State that changes between releases: the online store, and renewed prices and stock of items.

A store that fails or is late takes nothing from a list but what it would have added; the reply then
says ``failed_store``.
"""

from __future__ import annotations

import time
import zipfile
from collections.abc import Callable
from logging import WARNING
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from serving.bundle.arrays import Numbers
from serving.bundle.load import Bundle
from serving.bundle.properties import NumberColumn
from serving.log import is_logged, log
from serving.online.store import NOBODY, OnlineStore, StoreError
from serving.online.store import Visitor as Visitor
from serving.schemas import Degraded, Request

FOLDER = "live"
SECONDS = 1.0
"""Between looks at the file."""


def live_path(bundle: Bundle) -> Path:
    """Return the file of a bundle's renewed properties."""
    return bundle.directory.parent / FOLDER / f"{bundle.digest}.npz"


class LiveProperties:
    """One bundle's renewed properties, in one process; safe to share between threads."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle, self._path = bundle, live_path(bundle)
        self._seen: tuple[int, int] | None = None
        self._next = 0.0

    def refresh(self, now: float | None = None) -> None:
        """Read the file if it changed; values stay as they were if it cannot be used."""
        now = time.monotonic() if now is None else now
        if now < self._next:
            return
        self._next = now + SECONDS
        try:
            state = self._path.stat()
        except OSError:
            return
        if self._seen == (seen := (state.st_mtime_ns, state.st_ino)):
            return
        self._seen = seen
        try:
            self._bundle.properties.renew(self.read())
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            log(
                "live_properties_refused",
                {"file": str(self._path), "error": str(error)},
                level=WARNING,
            )

    def read(self) -> dict[str, Numbers]:
        """Read the values by property; none without a file.

        Raises:
            ValueError: They do not fit the bundle.
        """
        if not self._path.exists():
            return {}
        with self._path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            found = dict(file)
        for name, values in found.items():
            column = self._bundle.properties.columns.get(name)
            if not isinstance(column, NumberColumn) or values.shape != column.values.shape:
                raise ValueError(f"{name} is no number of this bundle's items; sync them again")
            NumberColumn(kind=column.kind, values=values).check(self._path)
        return found


Rows = NDArray[np.int64]
NO_ROWS: Rows = np.empty(0, np.int64)
FAILED = Degraded("failed_store")
MAX_HIDDEN = 200
"""Hidden items that every record names; of more it says only how many changes there were."""
RETRY_SECONDS = 1.0
"""Between attempts to open a store that could not be opened."""
Opener = Callable[[], OnlineStore | None]


class LiveState:
    """One bundle's view of the store, in one process."""

    def __init__(
        self, bundle: Bundle, opener: Opener | None = None, *, keeps_lists: bool = True
    ) -> None:
        """Open the store on first use.

        Args:
            opener: Opens the store; None, or one that gives None, reads none.
            keeps_lists: Whether records of served lists are wanted.
        """
        self._bundle, self._opener = bundle, opener
        self.properties = LiveProperties(bundle)
        self.keeps_lists = keeps_lists and opener is not None
        self._store: OnlineStore | None = None
        self._next_attempt = 0.0
        self.items_version = 0
        """Version of the hidden items that were read last."""
        self.hidden: Rows = NO_ROWS
        """Items that no list may show."""
        self.hidden_items: list[str] | None = []
        """Their ids, as records keep them; None where they are more than `MAX_HIDDEN`."""
        self.num_failures = 0

    def store(self) -> OnlineStore | None:
        """Open the store; None without one.

        Raises:
            StoreError: It cannot be opened, or could not be a moment ago.
        """
        if self._store is None and self._opener is not None:
            now = time.monotonic()
            if now < self._next_attempt:
                raise StoreError("the online store could not be opened a moment ago")
            self._next_attempt = now + RETRY_SECONDS
            self._store = self._opener()
            if self._store is None:
                self._opener, self.keeps_lists = None, False
        return self._store

    def visitor(
        self, request: Request, limit: int, page_ms: int | None = None
    ) -> tuple[Visitor, tuple[Degraded, ...]]:
        """Read what a list needs to know, at most ``limit`` events.

        Args:
            page_ms: The moment of the first page, if the list is a page: later events are left out.

        Returns:
            The visitor, and a note where the store failed.
        """
        moment = request.context.unix_time
        before_ms = None if page_ms is None else page_ms + 1
        before_ms = before_ms if moment is None else 1_000 * moment
        try:
            if (store := self.store()) is None:
                return NOBODY, ()
            found = store.visitor(request.user_id, limit, before_ms)
            if found.items_version != self.items_version:
                self._read_hidden(store)
        except StoreError as error:
            return NOBODY, (self._failed(error),)
        return found, ()

    def shown_items(
        self, request: Request, since_ms: int
    ) -> tuple[list[str], tuple[Degraded, ...]]:
        """List items that the visitor was shown since a moment, with a note if the store failed."""
        if request.user_id is None:
            return [], ()
        try:
            store = self.store()
            return ([] if store is None else store.shown_items(request.user_id, since_ms)), ()
        except StoreError as error:
            return [], (self._failed(error),)

    def refresh(self) -> None:
        """Read which items are hidden; as it was if the store fails."""
        self.visitor(Request(), 0)

    def _read_hidden(self, store: OnlineStore) -> None:
        version, hidden = store.hidden_items()
        rows = {item_id: self._bundle.catalogue.row_of(item_id) for item_id in hidden}
        known = {item_id: row for item_id, row in rows.items() if row is not None}
        self.hidden = np.array(list(known.values()), np.int64)
        self.hidden_items = sorted(known) if len(known) <= MAX_HIDDEN else None
        self.items_version = version

    def _failed(self, error: StoreError) -> Degraded:
        """Note and count a failure; the log has the first, then every 2nd, 4th, 8th."""
        self.num_failures += 1
        if is_logged(self.num_failures):
            log("store_failed", {"times": self.num_failures, "error": str(error)}, level=WARNING)
        return FAILED
