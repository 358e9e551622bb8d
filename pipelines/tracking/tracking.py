"""Send an outbox to an MLflow store and read its model registry, in a child with a time limit.

MLflow takes seconds to import and changes the environment, so only the child imports it
(``pipelines.tracking.store``). Runs that are not sent by then are sent by the next command.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipelines.config.operation import TrackingConfig
from pipelines.tracking.outbox import REFUSED, Outbox
from serving.bundle import copies


@dataclass(frozen=True, kw_only=True)
class SyncResult:
    """Result of sending an outbox."""

    sent: int = 0
    """Runs that the store has whole."""
    waiting: int = 0
    refused: int = 0
    """Records that the store will never accept; they are in refused.jsonl."""
    problem: str | None = None

    def log_line(self) -> str:
        """Format one line for the end of a run."""
        refused = f", {self.refused} records refused (see {REFUSED})" if self.refused else ""
        waiting = f", {self.waiting} waiting: {self.problem}" if self.waiting else ""
        return f"tracking: {self.sent} runs sent{refused}{waiting}"


def open_outbox(workspace: Path) -> Outbox:
    """Return the outbox of a workspace."""
    return Outbox(workspace / "tracking" / "outbox")


def store_uri(config: TrackingConfig, outbox: Outbox) -> str:
    """Return the store's address; by default a database next to the outbox."""
    database = f"sqlite:///{(outbox.path.parent / 'mlflow.db').absolute()}"
    return config.uri or os.environ.get("MLFLOW_TRACKING_URI") or database


def ask_store(uri: str, config: TrackingConfig, **request: Any) -> dict[str, Any]:
    """Send a request to a child process with MLflow, within the configured time.

    Raises:
        UnreachableError: The store gives no answer.
        ValueError: It refuses the request.
    """
    words = json.dumps({"uri": uri, "config": asdict(config), **request})
    command = [sys.executable, "-m", "pipelines.tracking.store", words]
    try:
        child = subprocess.run(
            command, capture_output=True, text=True, timeout=config.sync_seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise copies.UnreachableError(f"{uri} was not done in {config.sync_seconds:g} s") from None
    try:
        reply: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = (child.stderr.strip().splitlines() or ["no output"])[-1]
        raise copies.UnreachableError(f"asking {uri} failed: {last}") from None
    if "unreachable" in reply:
        raise copies.UnreachableError(reply["unreachable"])
    if "rejected" in reply:
        raise ValueError(reply["rejected"])
    return reply


def sync_outbox(outbox: Outbox, config: TrackingConfig) -> SyncResult:
    """Send the finished runs that wait.

    Never raises for what a server, a network or MLflow does: the runs wait for the next time.
    """
    if not outbox.finished():
        return SyncResult()
    try:
        place = str(outbox.path.absolute())
        return SyncResult(**ask_store(store_uri(config, outbox), config, outbox=place))
    except (OSError, ValueError) as error:
        longer = "; `recsys registry send --seconds 3600` sends for longer"
        problem = f"{error}{longer if 'was not done' in str(error) else ''}"
        return SyncResult(waiting=len(outbox.finished()), problem=problem)


@dataclass(frozen=True, kw_only=True)
class RegisteredBundle:
    """Registry's entry of a bundle; nothing of it is verified."""

    number: str
    version: str
    digest: str
    bundles: str
    pointer: str
    """Signed words on the above (`pipelines.tracking.entries`); empty if there are none."""
    served_is_registered: bool


def look_up(
    uri: str, config: TrackingConfig, name: str, served_digest: str | None = None
) -> RegisteredBundle:
    """Ask which bundle an alias or a version names.

    Raises:
        UnreachableError: The registry gives no answer.
        ValueError: There is no such alias or bundle.
    """
    return RegisteredBundle(**ask_store(uri, config, name=name, digest=served_digest))
