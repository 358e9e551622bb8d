"""Look through the places for what changed since the last time, and read that alone."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from pipelines.dashboard.runs.bundles import bundles_in, completed, read_bundle, read_kept
from pipelines.dashboard.runs.documents import changed_at, key_of
from pipelines.dashboard.runs.find import Found, find_below
from pipelines.dashboard.runs.run import Run
from pipelines.dashboard.runs.workspaces import WATCHED, read_workspace
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
        below: dict[str, Run] = {}
        for maker in makers:
            below |= read_kept(maker.path)
        return completed(bundles, folder, makers, below)


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
