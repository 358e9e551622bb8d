"""All runs of all places that the dashboard was given; there is no index of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.dashboard.query import NotFoundError
from pipelines.dashboard.runs.run import Run
from pipelines.dashboard.runs.scan import Scan, Snapshot

REST = 10.0
"""A watching store rests so many times as long as a look takes, that it costs little."""


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where runs are looked for."""

    roots: Sequence[Path]
    """Folders that hold workspaces, at any depth, or are one."""
    bundles: Sequence[Path] = ()
    """Folders of bundles beside those of the workspaces."""


class Stores:
    """Runs, read as they are now.

    Args:
        watch: Look for changes in the background, and reply at once with what is known, as a
            server does. Otherwise each reply looks first, which takes long where runs are many.
        every: Seconds between two looks of a store that watches.
    """

    def __init__(self, places: Places, *, watch: bool = False, every: float = 2.0) -> None:
        self.places = places
        self._scan = Scan(places.roots, places.bundles)
        self._snapshot = Snapshot()
        self._shown: list[Run] = []
        self._watch, self._every = watch, every
        self._started = threading.Lock()
        self._queried = threading.Event()
        self._looked = threading.Event()
        self._thread: threading.Thread | None = None

    def now(self) -> Snapshot:
        """Return what is known."""
        if not self._watch:
            return self.refresh()
        with self._started:
            if self._thread is None:
                self._thread = threading.Thread(target=self._go_on, daemon=True, name="runs")
                self._thread.start()
        self._queried.set()
        # A few runs are read before the first page is drawn; of many, a page shows what is there.
        if not self._looked.wait(0.5):
            self._looked.set()
        return self._snapshot

    def refresh(self) -> Snapshot:
        """Look through all places now."""
        with self._scan.lock:
            runs, problems = self._scan.look(self._show_part)
            self._show(runs, problems)
        self._looked.set()
        return self._snapshot

    def _show_part(self, runs: list[Run], problems: list[str]) -> None:
        """Show what is read so far, where that is more than was known."""
        if self._snapshot.reading:
            self._show(runs, problems, reading=True)

    def _show(self, runs: list[Run], problems: list[str], *, reading: bool = False) -> None:
        before = self._snapshot
        same = (reading, tuple(problems)) == (before.reading, before.problems)
        if same and runs == self._shown:
            return
        self._shown = runs
        self._snapshot = Snapshot.of(runs, problems, before.number + 1, reading=reading)

    def _go_on(self) -> None:
        while self._queried.wait():
            self._queried.clear()
            began = time.monotonic()
            try:
                self.refresh()
            except Exception as error:
                # A later look may succeed; without this thread no run would ever change.
                fault = f"runs cannot be read now: {type(error).__name__}: {error}"
                self._show(self._shown, [fault])
            time.sleep(max(self._every, REST * (time.monotonic() - began)))

    def runs(self) -> Sequence[Run]:
        """Return all runs, the newest first."""
        return self.now().runs

    def run(self, key: str) -> Run:
        """Return one run.

        Raises:
            NotFoundError: There is none of that key, or it is gone.
        """
        snapshot = self.now()
        if key in snapshot.by_key:
            return snapshot.by_key[key]
        if snapshot.reading:
            so_far = next(iter(snapshot.problems), "runs are being read")
            raise NotFoundError(f"run {key!r} is not there, or not yet: {so_far}. Try it later")
        raise NotFoundError(
            f"no run {key!r}: it was never there, or its folder is gone; see the page Runs"
        )

    def workspaces(self) -> Sequence[Run]:
        """Return the runs that are workspaces, the newest first."""
        return [run for run in self.runs() if run.kind == "workspace"]

    def bundles(self) -> Sequence[Run]:
        """Return the released bundles, the newest first."""
        return [run for run in self.runs() if run.kind == "bundle"]

    def backtests(self) -> Sequence[Path]:
        """Return the folders of backtests, each once."""
        self.now()
        return list({path.resolve(): path for path in self._scan.backtests}.values())

    def problems(self) -> Sequence[str]:
        """Say which places cannot be read now, in words; the page shows it above all."""
        return self.now().problems
