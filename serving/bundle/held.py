"""Folders that this process uses, so that nobody removes them: `recsys gc` leaves what is held.

Each folder of a loaded bundle is locked, shared with all others who use it, for as long as the
bundle is loaded. The kernel drops the lock with the process. Where a file system has no locks, or
the server runs on another machine, nothing is held: there a bundle is kept by its age.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


class Held:
    """Holds folders until it is collected."""

    def __init__(self, folders: Iterable[Path]) -> None:
        """Hold folders.

        Raises:
            ValueError: One of them is being removed.
        """
        self._descriptors: list[int] = []
        weakref.finalize(self, _close, self._descriptors)
        for folder in folders:
            self._hold(folder)

    def _hold(self, folder: Path) -> None:
        # Not on Windows; the import stands here because most who load bundles' code hold nothing.
        import fcntl

        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            self._descriptors.append(descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(
                    f"{folder} is being removed (recsys gc); name another bundle"
                ) from None


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
