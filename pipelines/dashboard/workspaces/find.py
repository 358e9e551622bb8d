"""Find workspaces, folders of bundles and backtests below a root, without reading their files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from pipelines.dashboard.workspaces.files import names_in
from recsys.replay.replay import DESCRIPTION

MAX_DEPTH = 8
UPDATE, RELEASED, BUNDLES = "update", "released", "bundles"
BEGUN = frozenset({"lock", "build_features", ".partial-build_features"})
PASSED_OVER = re.compile(r"\.|\w+=")
BACKTEST, DOCUMENT = "backtest", "backtest.json"
"""Folder of a run's own backtest, and what marks a folder whose workspace is part of one."""


class Found(NamedTuple):
    """A folder of interest."""

    path: Path
    kind: Literal["workspace", "bundles", "backtest"]


def is_workspace(names: set[str]) -> bool:
    """Return whether a folder with these names in it is the folder of a run."""
    return "evaluate" in names or ("config.toml" in names and not names.isdisjoint(BEGUN))


def find_below(root: Path) -> Iterator[Found]:
    """List workspaces, the increments' below them, folders of bundles, and backtests.

    Descends into no workspace, hidden folder, link, or partition (``day=2026-01-01``).
    """
    waiting = [(str(root), 0)]
    while waiting:
        folder, depth = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                listed = [(entry.name, entry) for entry in entries]
        except OSError:
            if depth == 0:
                raise
            continue
        names = {name for name, _ in listed}
        if is_workspace(names):
            yield Found(Path(folder), "workspace")
            yield from _below_workspace(folder, names)
        elif any(name.startswith("bundle-") for name in names):
            yield Found(Path(folder), "bundles")
        elif DESCRIPTION in names and "steps" in names:
            yield Found(Path(folder), "backtest")
        elif depth < MAX_DEPTH and DOCUMENT not in names:
            below = [entry for name, entry in listed if not PASSED_OVER.match(name)]
            waiting += [(entry.path, depth + 1) for entry in below if _is_folder(entry)]


def _below_workspace(folder: str, names: set[str]) -> Iterator[Found]:
    if BUNDLES in names:
        yield Found(Path(folder, BUNDLES), "bundles")
    if BACKTEST in names and (own := Path(folder, BACKTEST)).joinpath(DESCRIPTION).exists():
        yield Found(own, "backtest")
    if UPDATE in names:
        path = Path(folder, UPDATE)
        if is_workspace(set(names_in(path))):
            yield Found(path, "workspace")


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False
