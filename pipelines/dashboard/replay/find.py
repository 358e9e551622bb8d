"""Find the backtests below the dashboard's places, finished or not, without reading them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from pipelines.backtest.run import FOLDER
from pipelines.dashboard.context import Context
from pipelines.dashboard.runs.find import MAX_DEPTH, PASSED_OVER, is_workspace
from recsys.replay.run import DESCRIPTION

QUICK_SECONDS = 0.1
"""A search that takes less is made for every page."""
REST = 20.0
"""One that takes longer is made once in so many times as long as it takes, in the background."""


def find_backtests(root: Path) -> Iterator[Path]:
    """List folders of backtests at any depth: a run's own, and those that lie elsewhere.

    Like the search for runs, it descends into no hidden folder, link or partition.
    """
    waiting = [(str(root), 0)]
    while waiting:
        folder, depth = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                listed = [(entry.name, entry) for entry in entries]
        except OSError:
            continue
        names = {name for name, _ in listed}
        if DESCRIPTION in names and "steps" in names:
            yield Path(folder)
        elif is_workspace(names):
            if FOLDER in names and (own := Path(folder, FOLDER)).joinpath(DESCRIPTION).exists():
                yield own
        elif depth < MAX_DEPTH and not any(name.startswith("bundle-") for name in names):
            below = (entry for name, entry in listed if not PASSED_OVER.match(name))
            waiting += [(entry.path, depth + 1) for entry in below if _is_folder(entry)]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


class Search:
    """What the search found last; a long one goes on in the background."""

    def __init__(self, roots: Iterable[Path]) -> None:
        self._roots = tuple(roots)
        self._found: tuple[Path, ...] | None = None
        self._ended = self._took = 0.0
        self._lock = threading.Lock()

    def found(self) -> tuple[Path, ...]:
        """Return the folders that are known, searched anew where that is quick or overdue."""
        if self._found is None or self._took < QUICK_SECONDS:
            with self._lock:
                return self._look()
        overdue = time.monotonic() - self._ended > REST * self._took
        if overdue and self._lock.acquire(blocking=False):
            threading.Thread(target=self._look_and_release, daemon=True).start()
        return self._found

    def _look(self) -> tuple[Path, ...]:
        began = time.monotonic()
        found = {path.resolve(): path for root in self._roots for path in find_backtests(root)}
        self._found = tuple(found.values())
        self._ended = time.monotonic()
        self._took = self._ended - began
        return self._found

    def _look_and_release(self) -> None:
        try:
            self._look()
        finally:
            self._lock.release()


def backtests_of(context: Context) -> tuple[Path, ...]:
    """List the folders of backtests below the dashboard's places."""
    search = context.cache.get(
        ("search for backtests",), (), lambda: Search(context.stores.places.roots)
    )
    return search.found()
