"""The lock of a folder of bundles: one publisher at a time, of whichever workspace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelines.engine.errors import WorkspaceBusyError
from pipelines.engine.workspace import named_in, read_holder
from recsys.data.durable import locked

LOCK = ".publish.lock"
"""Held by a process that writes bundles, moves ``current`` or removes bundles."""
PATIENCE_SECONDS = 60.0
"""A publisher is done in seconds. One that is not hangs, and who waits for it would hang too."""


@contextmanager
def publishing(bundles: Path, patience_seconds: float = PATIENCE_SECONDS) -> Iterator[None]:
    """Hold the folder of bundles."""
    path = bundles / LOCK
    with locked(path, wait=patience_seconds) as held:
        if not held:
            raise WorkspaceBusyError(
                f"the folder of bundles {bundles.absolute()} is in use by "
                f"{read_holder(path) or 'an unknown process'}, for more than "
                f"{patience_seconds:.0f} s. Nothing was published; run this command when that "
                "process has ended"
            )
        with named_in(path):
            yield
