"""All runs of all places that the dashboard was given; there is no index of its own."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pipelines.dashboard.query import NotFoundError
from pipelines.dashboard.workspaces.files import changed_at, file_stamp, names_in, place_key
from pipelines.dashboard.workspaces.read import (
    WATCHED,
    bundles_in,
    complete_bundles,
    read_bundle,
    read_workspace,
)
from pipelines.dashboard.workspaces.run import Run
from pipelines.engine.decisions import LOG as DECISIONS
from pipelines.engine.workspace import UPDATE
from serving.bundle.manifest import CURRENT, MANIFEST

SHOWN_AFTER = 0.3
"""Seconds of reading after which others see the runs read so far."""
REST = 10.0
"""Rest of a watching store between two looks, as a multiple of the time that a look takes."""
T = TypeVar("T")
EARLIEST = datetime.min.replace(tzinfo=UTC)
MAX_DEPTH = 8
BUNDLES = "bundles"
BEGUN = frozenset({"lock", "build_features", ".partial-build_features"})
PASSED_OVER = re.compile(r"\.|\w+=")
DOCUMENT = "backtest.json"
"""Marks a folder whose workspaces are parts of a backtest."""


def is_workspace(names: set[str]) -> bool:
    """Return whether a folder with these names in it is the folder of a run."""
    return "evaluate" in names or ("config.toml" in names and not names.isdisjoint(BEGUN))


def find_below(root: Path) -> Iterator[tuple[Path, str]]:
    """List workspaces, the increments' below them, and folders of bundles.

    Each comes with its kind, ``workspace`` or ``bundles``. Descends into no workspace, hidden
    folder, link, or partition (``day=2026-01-01``).
    """
    waiting = [(str(root), 0)]
    while waiting:
        folder, depth = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                listed = {entry.name: entry for entry in entries}
        except OSError:
            if depth == 0:
                raise
            continue
        names, path = set(listed), Path(folder)
        if is_workspace(names):
            yield path, "workspace"
            yield from _below_workspace(path, names)
        elif any(name.startswith("bundle-") for name in names):
            yield path, "bundles"
        elif depth < MAX_DEPTH and DOCUMENT not in names:
            below = [entry for name, entry in listed.items() if not PASSED_OVER.match(name)]
            waiting += [(one.path, depth + 1) for one in below if one.is_dir(follow_symlinks=False)]


def _below_workspace(path: Path, names: set[str]) -> Iterator[tuple[Path, str]]:
    if BUNDLES in names:
        yield path / BUNDLES, "bundles"
    if UPDATE in names and is_workspace(set(names_in(path / UPDATE))):
        yield path / UPDATE, "workspace"


@dataclass(frozen=True, kw_only=True)
class Places:
    """Folders with runs."""

    roots: Sequence[Path]
    """Folders that hold workspaces, at any depth, or are one."""
    bundles: Sequence[Path] = ()
    """Folders of bundles besides those of the workspaces."""


@dataclass(frozen=True)
class Snapshot:
    """The runs that are known at one moment."""

    runs: tuple[Run, ...] = ()
    problems: tuple[str, ...] = ()
    number: int = 0
    by_key: Mapping[str, Run] = field(default_factory=dict)
    reading: bool = True
    """True while there may be more, which are not read yet."""

    @classmethod
    def of(
        cls, runs: Sequence[Run], problems: Sequence[str], number: int, *, reading: bool = False
    ) -> Snapshot:
        """Order runs by time."""
        ordered = sorted(runs, key=lambda run: (run.time or EARLIEST, run.name), reverse=True)
        by_key = {run.key: run for run in ordered}
        return cls(tuple(ordered), tuple(problems), number, by_key, reading)


def _read(path: Path) -> Run:
    """Read a workspace; a fault in one must not hide the others."""
    try:
        return read_workspace(path)
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        why = f"it cannot be read: {type(error).__name__}: {error}"[:300]
        return Run(
            key=place_key(str(path.resolve())),
            name=path.name,
            kind="workspace",
            status="unreadable",
            time=changed_at(path),
            path=path,
            problems=(why,),
        )


class Stores:
    """Runs, read as they are now; those whose files stay as they are are kept.

    Args:
        places: Folders to look in.
        watch: Look for changes in the background, and reply at once with the known runs, as a
            server does. Otherwise each reply looks first, which takes long with many runs.
        every: Seconds between two looks of a store that watches.
    """

    def __init__(self, places: Places, *, watch: bool = False, every: float = 2.0) -> None:
        self.places = places
        self._kept: dict[Path, tuple[object, Any]] = {}
        self._before = self._kept
        self._snapshot = Snapshot()
        self._shown: list[Run] = []
        self._watch, self._every = watch, every
        self._looking = threading.Lock()
        self._started = threading.Lock()
        self._queried = threading.Event()
        self._looked = threading.Event()
        self._thread: threading.Thread | None = None

    def now(self) -> Snapshot:
        """Return the runs that are known."""
        if not self._watch:
            return self.refresh()
        with self._started:
            if self._thread is None:
                self._thread = threading.Thread(target=self._keep_looking, daemon=True, name="runs")
                self._thread.start()
        self._queried.set()
        # A few runs are read before the first page is drawn; of many, a page shows some.
        if not self._looked.wait(0.5):
            self._looked.set()
        return self._snapshot

    def refresh(self) -> Snapshot:
        """Look through all places now."""
        with self._looking:
            self._show(*self._look())
        self._looked.set()
        return self._snapshot

    def _keep_looking(self) -> None:
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

    def _show(self, runs: list[Run], problems: list[str], *, reading: bool = False) -> None:
        before = self._snapshot
        same = (reading, tuple(problems)) == (before.reading, before.problems)
        if same and runs == self._shown:
            return
        self._shown = runs
        self._snapshot = Snapshot.of(runs, problems, before.number + 1, reading=reading)

    def _look(self) -> tuple[list[Run], list[str]]:
        """Return the runs, in no order, and the faults of the places."""
        found, problems = self._find()
        self._before, self._kept = self._kept, {}
        workspaces = [path for path, kind in found.items() if kind == "workspace"]
        runs: list[Run] = []
        shown = time.monotonic()
        for number, path in enumerate(workspaces, 1):
            runs.append(self._cached(path, file_stamp(path / one for one in WATCHED), _read))
            if self._snapshot.reading and time.monotonic() - shown > SHOWN_AFTER:
                words = f"{number:,} of about {len(workspaces):,} runs read; the rest follows"
                self._show(list(runs), [words, *problems], reading=True)
                shown = time.monotonic()
        folders = [path for path, kind in found.items() if kind == "bundles"]
        return [*runs, *self._bundles(folders, runs)], problems

    def _cached(self, path: Path, state: object, read: Callable[[Path], T]) -> T:
        """Return what the look before read of a path, unless its state changed."""
        kept = self._before.get(path)
        value: T = kept[1] if kept is not None and kept[0] == state else read(path)
        self._kept[path] = (state, value)
        return value

    def _find(self) -> tuple[dict[Path, str], list[str]]:
        found: dict[Path, str] = {}
        problems = []
        for root in self.places.roots:
            try:
                found |= dict(find_below(root))
            except OSError as error:
                problems.append(f"{root} cannot be read: {error.strerror or error}")
        for folder in self.places.bundles:
            if folder.is_dir():
                found.setdefault(folder, "bundles")
            else:
                problems.append(f"{folder}, a folder of bundles, is not there")
        return found, problems

    def _bundles(self, folders: Sequence[Path], workspaces: Sequence[Run]) -> list[Run]:
        """Read the folders that were found, and those that workspaces release into."""
        makers: dict[Path, list[Run]] = {}
        for run in workspaces:
            folder = run.bundles_folder
            if run.bundles or folder in folders:
                makers.setdefault(Path(os.path.realpath(folder)), []).append(run)
        real = {Path(os.path.realpath(folder)): folder for folder in [*makers, *folders]}
        found: list[Run] = []
        for place, folder in real.items():
            own = makers.get(place, [])
            bundles = [
                self._cached(one, file_stamp([one / MANIFEST]), read_bundle)
                for one in bundles_in(folder)
            ]
            times = file_stamp([folder, folder / CURRENT, folder / DECISIONS])
            served = os.path.realpath(folder / CURRENT)
            state = (times, served, [id(run) for run in (*own, *bundles)])
            complete = partial(complete_bundles, bundles, workspaces=own)
            found += self._cached(folder, state, complete)
        return found

    def runs(self) -> Sequence[Run]:
        """Return all runs, the newest first."""
        return self.now().runs

    def run(self, key: str) -> Run:
        """Return one run; NotFoundError if it is gone."""
        snapshot = self.now()
        if key in snapshot.by_key:
            return snapshot.by_key[key]
        if snapshot.reading:
            so_far = next(iter(snapshot.problems), "runs are being read")
            raise NotFoundError(f"run {key!r} is not there, or not yet: {so_far}. Try it later")
        raise NotFoundError(f"no run {key!r}, or its folder is gone; see the page Runs")

    def maker(self, run: Run) -> Run | None:
        """Return the workspace that released a bundle, if it is there."""
        return self.now().by_key.get(run.made_by or "")

    def bundles(self) -> Sequence[Run]:
        """Return the released bundles, the newest first."""
        return [run for run in self.runs() if run.kind == "bundle"]

    def problems(self) -> Sequence[str]:
        """Return which places cannot be read now, in words; the page shows it above all."""
        return self.now().problems
