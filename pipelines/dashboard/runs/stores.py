"""All runs of all places that the dashboard was given; there is no index of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.dashboard.query import NotFoundError
from pipelines.dashboard.runs.run import Run
from pipelines.dashboard.runs.workspaces import read_workspaces


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where runs are looked for."""

    roots: Sequence[Path]
    """Folders that hold workspaces, at any depth, or are one."""
    bundles: Sequence[Path] = ()
    """Folders of bundles beside those of the workspaces."""
    mlflow: Sequence[str] = ()
    """Tracking stores, such as ``sqlite:///mlflow.db``, beside those of the workspaces."""


class Stores:
    """Runs, read as they are now."""

    def __init__(self, places: Places) -> None:
        self.places = places

    def runs(self) -> Sequence[Run]:
        """Return all runs, the newest first."""
        return read_workspaces(self.places.roots)

    def run(self, key: str) -> Run:
        """Return one run.

        Raises:
            NotFoundError: There is none of that key, or it is gone.
        """
        for run in self.runs():
            if run.key == key:
                return run
        raise NotFoundError(
            f"no run {key!r}: it was never there, or its folder is gone; see the page Runs"
        )

    def workspaces(self) -> Sequence[Run]:
        """Return the runs that are workspaces, the newest first."""
        return [run for run in self.runs() if run.kind == "workspace"]

    def bundles(self) -> Sequence[Run]:
        """Return the released bundles, the newest first."""
        return [run for run in self.runs() if run.kind == "bundle"]

    def problems(self) -> Sequence[str]:
        """Say which places cannot be read now, in words; the page shows it above all."""
        return [f"{root} is not there" for root in self.places.roots if not root.is_dir()]
