"""Send an outbox to an MLflow store, in a child with a time limit.

MLflow takes seconds to import and changes the environment, so the child imports it
(``pipelines.tracking.store``). Runs that are not sent by then are sent by the next command.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from pipelines.config.operation import TrackingConfig
from pipelines.tracking.outbox import Outbox


class SyncResult(NamedTuple):
    """Result of sending an outbox, in runs."""

    sent: int = 0
    waiting: int = 0
    refused: int = 0
    """Runs that the store will never accept; their files end in ``.refused``."""
    problem: str | None = None

    def log_line(self) -> str:
        """Format one line for the end of a run."""
        refused = f", {self.refused} refused (kept as *.refused)" if self.refused else ""
        waiting = f", {self.waiting} waiting" if self.waiting else ""
        problem = f": {self.problem}" if self.problem else ""
        return f"tracking: {self.sent} runs sent{refused}{waiting}{problem}"


def open_outbox(workspace: Path) -> Outbox:
    """Return the outbox of a workspace."""
    return Outbox(workspace / "tracking" / "outbox")


def store_uri(config: TrackingConfig, outbox: Outbox) -> str:
    """Return the store's address; by default a database next to the outbox."""
    database = f"sqlite:///{(outbox.path.parent / 'mlflow.db').absolute()}"
    return config.uri or os.environ.get("MLFLOW_TRACKING_URI") or database


def sync_outbox(outbox: Outbox, config: TrackingConfig) -> SyncResult:
    """Send the finished runs that wait.

    Never raises for what a server, a network or MLflow does: the runs wait for the next time.
    """
    if not outbox.finished():
        return SyncResult()
    uri = store_uri(config, outbox)
    request = {"uri": uri, "config": asdict(config), "outbox": str(outbox.path.absolute())}
    command = [sys.executable, "-m", "pipelines.tracking.store", json.dumps(request)]
    error = ""
    try:
        child = subprocess.run(
            command, capture_output=True, text=True, timeout=config.sync_seconds, check=False
        )
        error = (child.stderr.strip().splitlines() or ["no output"])[-1]
        return SyncResult(**json.loads(child.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        problem = (
            f"{uri} was not done in {config.sync_seconds:g} s; `recsys registry send --seconds "
            "3600` sends for longer"
        )
    except (OSError, IndexError, ValueError) as fault:
        problem = f"asking {uri} failed: {error or fault}"
    return SyncResult(waiting=len(outbox.finished()), problem=problem)
