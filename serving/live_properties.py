"""Prices, stock and other numbers of items since the release, as ``recsys items sync`` writes them.

    bundles/live/<digest>.npz       by item row, one array a property that is renewed, [N] float64

The file is replaced as a whole, and each process looks for a new one once a second. It fits one
bundle; a new release begins with the values of its own items table.
"""

from __future__ import annotations

import time
import zipfile
from logging import WARNING
from pathlib import Path

import numpy as np

from serving.bundle.arrays import Numbers
from serving.bundle.load import Bundle
from serving.bundle.properties import NumberColumn
from serving.log import log

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
