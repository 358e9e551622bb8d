"""Read what MLflow stores have on record about evaluations, in a child process.

MLflow takes seconds to import and changes the environment, which only the child does
(``pipelines.tracking.store.history``).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipelines.config.tracking import TrackingConfig
from pipelines.tracking.store.connection import local_path

AT = re.compile(r"_at_(\d+)$")
SECONDS = 600.0
"""Longest that a child may read."""


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """A run of a store: an evaluation of ours, or anything of others."""

    run_id: str
    name: str
    experiment: str
    status: str
    """As MLflow names it: ``FINISHED``, ``RUNNING``, ``FAILED``, ``KILLED``."""
    started: datetime | None
    ended: datetime | None
    metrics: Mapping[str, float | str]
    """As logged, ``ndcg_at_10`` written ``ndcg@10``; text where a value is no number."""
    params: Mapping[str, str]
    tags: Mapping[str, str]
    artifacts: Path | None
    """Folder of its files, where that is on this machine."""

    @property
    def key(self) -> str | None:
        """Digest of what an evaluation of ours was made from."""
        return self.tags.get("key") if self.tags.get("stage") == "evaluate" else None


@dataclass(frozen=True)
class StoreHistory:
    """What a store was found to have."""

    runs: list[TrackedRun] = field(default_factory=list)
    problem: str | None = None


def read_stores(
    stores: Mapping[str, int], config: TrackingConfig | None = None
) -> dict[str, StoreHistory]:
    """Read runs of stores.

    Args:
        stores: By address: milliseconds since 1970, from which on runs that began are read.
    """
    request = {"stores": dict(stores), "config": asdict(config or TrackingConfig())}
    found = {uri: StoreHistory(problem="it was not read in time") for uri in stores}
    try:
        child = subprocess.run(
            [sys.executable, "-m", "pipelines.tracking.store.history", json.dumps(request)],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return found
    runs: dict[str, list[TrackedRun]] = {uri: [] for uri in stores}
    for line in child.stdout.splitlines():
        if not line.startswith('{"uri"'):
            continue
        document = json.loads(line)
        if "run" in document:
            runs[document["uri"]].append(_run_of(document["run"]))
        else:
            uri = document["uri"]
            found[uri] = StoreHistory(runs[uri], document["problem"])
    return found


def _run_of(document: Mapping[str, Any]) -> TrackedRun:
    return TrackedRun(
        run_id=document["id"],
        name=document["name"],
        experiment=document["experiment"],
        status=document["status"],
        started=_time(document["started"]),
        ended=_time(document["ended"]),
        metrics={AT.sub(r"@\1", name): value for name, value in document["metrics"].items()},
        params=document["params"],
        tags=document["tags"],
        artifacts=local_path(document["artifacts"]),
    )


def _time(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)
