"""Ranks that stop answering: each touches a file of its own and looks at those of the others.

A rank that is stopped, or stuck in a driver, holds all others in an exchange until
``torchrun.wait_seconds``, and the error then names a rank that waited. Here the others name the
silent one and end.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

BEAT_SECONDS, SILENT_SECONDS = 3.0, 25.0
ALIVE, ERROR = "alive-{}", "error-{}.json"


@contextmanager
def heartbeat(
    folder: Path, rank: int, beat: float = BEAT_SECONDS, silent: float = SILENT_SECONDS
) -> Iterator[None]:
    """Show for the time of a block that this rank lives; end the process if another is silent."""
    own, ended = folder / ALIVE.format(rank), threading.Event()

    def watch() -> None:
        before: set[str] = set()
        while not ended.wait(beat):
            with suppress(OSError):
                own.touch()
                # By the clock of the folder's file system. A rank that is done has no file.
                oldest, files = own.stat().st_mtime - silent, folder.glob(ALIVE.format("*"))
                found = {one.name for one in files if one.stat().st_mtime < oldest}
                # Twice: after a pause of the whole machine some wake before others.
                if both := found & before:
                    give_up(folder, int(min(both).rpartition("-")[2]), silent)
                before = found

    own.touch()
    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        own.unlink(missing_ok=True)


def give_up(folder: Path, rank: int, silent: float) -> None:
    """Write the error of a silent rank, and end this process."""
    words = f"it has not answered for {silent:g} s; look for a stopped process or a faulty GPU"
    error = {"rank": rank, "time": time.time(), "kind": "", "message": words}
    (folder / ERROR.format(rank)).write_text(json.dumps(error))
    os._exit(1)
