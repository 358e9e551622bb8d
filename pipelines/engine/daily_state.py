"""Paths of a shop's daily state, for ingest, update, monitor, parity, status, gc and forget.

<workspace>/
    partitions/         clean events of each day, with their manifest
    online_events/      export of the online store
    monitoring/         days that were watched, the latest one in words, the page
    parity/             served lists recomputed
    released/<version>/ artefacts that a released bundle was made from
    update/             workspace of increments
    forgotten.json      users who are left out of every preparation
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipelines.engine.workspace import RELEASED, UPDATE

SCHEMA = 1
"""Version of the layout and of the documents in it that have a ``format``."""


@dataclass(frozen=True)
class DailyState:
    """Daily state of one shop."""

    workspace: Path

    @classmethod
    def find(cls, workspace: Path) -> DailyState:
        """Return the state of a shop, also for the workspace of its increments."""
        return cls(workspace.parent if workspace.name == UPDATE else workspace)

    @property
    def partitions(self) -> Path:
        """Folder of events that were ingested."""
        return self.workspace / "partitions"

    @property
    def partitions_manifest(self) -> Path:
        return self.partitions / "partitions.json"

    @property
    def partitions_lock(self) -> Path:
        return self.partitions / ".lock"

    @property
    def days(self) -> Path:
        """Folder with a folder for each partition."""
        return self.partitions / "days"

    def partition(self, key: str, revision: int) -> Path:
        """Return the folder of a version of a partition."""
        return self.days / f"{key}~{revision}"

    @property
    def online_events(self) -> Path:
        """Folder of the online store's exported events and lists."""
        return self.workspace / "online_events"

    @property
    def monitoring(self) -> Path:
        return self.workspace / "monitoring"

    @property
    def monitor(self) -> Path:
        """Document of the latest day that was watched."""
        return self.monitoring / "monitor.json"

    @property
    def monitor_page(self) -> Path:
        return self.monitoring / "monitor.html"

    @property
    def signals(self) -> Path:
        """Table of every signal of every day."""
        return self.monitoring / "days.parquet"

    @property
    def watched(self) -> Path:
        """Digests of the days that were watched."""
        return self.monitoring / "state.json"

    @property
    def parity(self) -> Path:
        """Document of the latest parity check."""
        return self.workspace / "parity" / "parity.json"

    @property
    def released(self) -> Path:
        """Folder with what each released bundle was made from."""
        return self.workspace / RELEASED

    @property
    def update(self) -> Path:
        """Workspace of increments."""
        return self.workspace / UPDATE

    @property
    def forgotten(self) -> Path:
        """List of forgotten users, unless ``data.forgotten`` names another."""
        return self.workspace / "forgotten.json"
