"""Find workspaces and folders of bundles below a root, without reading what lies in them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pipelines.dashboard.runs.documents import names_in

MAX_DEPTH = 8
UPDATE, RELEASED, BUNDLES = "update", "released", "bundles"
BEGUN = frozenset({"lock", "build_features", ".partial-build_features"})
PASSED_OVER = re.compile(r"\.|\w+=")
"""Hidden folders and partitions."""
BACKTEST = "backtest.json"
"""Marks a folder whose workspace is part of a backtest."""


class Found(NamedTuple):
    """A folder of interest."""

    path: Path
    is_workspace: bool
    """Otherwise it holds bundles."""


def is_workspace(names: set[str]) -> bool:
    """Whether a folder with these names in it is the folder of a run."""
    return "evaluate" in names or ("config.toml" in names and not names.isdisjoint(BEGUN))


def find_below(root: Path) -> Iterator[Found]:
    """List workspaces, the increments' below them, and folders of bundles.

    Descends into no workspace, hidden folder, link, or partition (``day=2026-01-01``).

    Raises:
        OSError: The root itself cannot be read.
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
            yield Found(Path(folder), True)
            yield from _below_workspace(folder, names)
        elif any(name.startswith("bundle-") for name in names):
            yield Found(Path(folder), False)
        elif depth < MAX_DEPTH and BACKTEST not in names:
            below = [entry for name, entry in listed if not PASSED_OVER.match(name)]
            waiting += [(entry.path, depth + 1) for entry in below if _is_folder(entry)]


def _below_workspace(folder: str, names: set[str]) -> Iterator[Found]:
    if BUNDLES in names:
        yield Found(Path(folder, BUNDLES), False)
    if UPDATE in names:
        path = Path(folder, UPDATE)
        if is_workspace(set(names_in(path))):
            yield Found(path, True)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False
