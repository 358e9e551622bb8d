"""Look through the places for what changed since the last time, and read that alone."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from pipelines.dashboard.query import NotFoundError
from pipelines.dashboard.workspaces.files import changed_at, key_of
from pipelines.dashboard.workspaces.find import Found, find_below
from pipelines.dashboard.workspaces.read import (
    WATCHED,
    bundles_in,
    completed,
    read_bundle,
    read_workspace,
)
from pipelines.dashboard.workspaces.run import Run
from pipelines.publishing.decisions import FOLDER as DECISIONS
from serving.bundle.manifest import CURRENT, MANIFEST

SHOWN_AFTER = 0.3
"""Seconds of reading before others see what is read so far; each time a half longer."""
EARLIEST = datetime.min.replace(tzinfo=UTC)
Times = tuple[int, ...]


def times_of(folder: str, names: Sequence[str]) -> Times:
    """When files last changed, and their sizes; 0 where one is not there."""
    found = []
    for name in names:
        try:
            # Called a million times where runs are 100,000: no Path for each.
            stat = os.stat(f"{folder}/{name}")  # noqa: PTH116
            found += [stat.st_mtime_ns, stat.st_size]
        except OSError:
            found += [0, 0]
    return tuple(found)


@dataclass(frozen=True)
class Snapshot:
    """What is known at one moment."""

    runs: tuple[Run, ...] = ()
    """The newest first."""
    problems: tuple[str, ...] = ()
    number: int = 0
    """Grows with each change."""
    by_key: Mapping[str, Run] = field(default_factory=dict)
    reading: bool = True
    """Whether there may be more, which are not read yet."""

    @classmethod
    def of(
        cls, runs: Sequence[Run], problems: Sequence[str], number: int, *, reading: bool = False
    ) -> Snapshot:
        """Order runs by time."""
        ordered = sorted(runs, key=lambda run: (run.time or EARLIEST, run.name), reverse=True)
        by_key = {run.key: run for run in ordered}
        return cls(tuple(ordered), tuple(problems), number, by_key, reading)


@dataclass
class _Kept:
    """A run, and the times of the files that it was read from."""

    times: Times
    run: Run


class Scan:
    """Reads workspaces and bundles; keeps those whose files stay as they are."""

    def __init__(self, roots: Sequence[Path], bundles: Sequence[Path]) -> None:
        self._roots, self._folders = roots, bundles
        self._workspaces: dict[Path, _Kept] = {}
        self._bundles: dict[Path, _Kept] = {}
        self._completed: dict[Path, tuple[object, list[Run]]] = {}
        self.backtests: tuple[Path, ...] = ()
        """Folders of backtests."""
        self.lock = threading.Lock()
        """Held while looking through: one looks at a time."""

    def look(self, show: Callable[[list[Run], list[str]], None]) -> tuple[list[Run], list[str]]:
        """Look through all places once.

        Args:
            show: Called with what is there so far, every so many runs that are read.

        Returns:
            The runs, in no order, and what is wrong with the places.
        """
        found, problems = self._find()
        self.backtests = tuple(one.path for one in found if one.kind == "backtest")
        places = [one.path for one in found if one.kind == "workspace"]
        workspaces: dict[Path, _Kept] = {}
        shown, rest = time.monotonic(), SHOWN_AFTER
        for number, path in enumerate(places, 1):
            times = times_of(str(path), WATCHED)
            kept = self._workspaces.get(path)
            if kept is None or kept.times != times:
                kept = workspaces[path] = _Kept(times, _read(path))
                if time.monotonic() - shown > rest:
                    words = f"{number:,} of about {len(places):,} runs read; the rest follows"
                    show([one.run for one in workspaces.values()], [words, *problems])
                    shown, rest = time.monotonic(), 1.5 * rest
            workspaces[path] = kept
        self._workspaces = workspaces
        runs = [one.run for one in workspaces.values()]
        folders = dict.fromkeys(one.path for one in found if one.kind == "bundles")
        return [*runs, *self._read_bundles(folders, runs)], problems

    def _find(self) -> tuple[list[Found], list[str]]:
        found: dict[Path, Found] = {}
        problems = []
        for root in self._roots:
            try:
                found |= {one.path: one for one in find_below(root)}
            except OSError as error:
                problems.append(f"{root} cannot be read: {error.strerror or error}")
        for folder in self._folders:
            if folder.is_dir():
                found.setdefault(folder, Found(folder, "bundles"))
            else:
                problems.append(f"{folder}, a folder of bundles, is not there")
        return list(found.values()), problems

    def _read_bundles(self, folders: Mapping[Path, None], workspaces: Sequence[Run]) -> list[Run]:
        users = _by_folder(workspaces, folders)
        # Folders that a setting names come beside those that were found.
        real = {Path(os.path.realpath(folder)): folder for folder in [*users, *folders]}
        found: list[Run] = []
        for place, folder in real.items():
            makers = users.get(place, [])
            watched = ("", CURRENT, DECISIONS, "refused")
            times = times_of(str(folder), watched)
            state = (times, os.path.realpath(folder / CURRENT), [id(run) for run in makers])
            kept = self._completed.get(place)
            if kept is None or kept[0] != state:
                kept = self._completed[place] = (state, self._completed_of(folder, makers))
            found += kept[1]
        return found

    def _completed_of(self, folder: Path, makers: Sequence[Run]) -> list[Run]:
        bundles = []
        for path in bundles_in(folder):
            times = times_of(str(path), (MANIFEST,))
            kept = self._bundles.get(path)
            if kept is None or kept.times != times:
                kept = self._bundles[path] = _Kept(times, read_bundle(path))
            bundles.append(kept.run)
        return completed(bundles, folder, makers)


def _read(path: Path) -> Run:
    """Read a workspace; whatever is wrong with one must not hide the others."""
    try:
        return read_workspace(path)
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        why = f"it cannot be read: {type(error).__name__}: {error}"[:300]
        return Run(
            key=key_of(str(path.resolve())),
            name=path.name,
            kind="workspace",
            status="unreadable",
            time=changed_at(path),
            path=path,
            problems=(why,),
        )


def _by_folder(workspaces: Sequence[Run], folders: Mapping[Path, None]) -> dict[Path, list[Run]]:
    """Group workspaces by the folder that they release bundles into."""
    users: dict[Path, list[Run]] = {}
    for run in workspaces:
        folder = run.bundles_folder
        if run.bundles or folder in folders:
            users.setdefault(Path(os.path.realpath(folder)), []).append(run)
    return users


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
