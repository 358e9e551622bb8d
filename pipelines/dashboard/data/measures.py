"""What a side is like besides right, and what it costs: from its evaluation, run and release."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelines.dashboard.context import Context
from pipelines.dashboard.data.answers import Side, Split, answers
from pipelines.dashboard.query import NotFoundError
from pipelines.dashboard.workspaces.run import Run
from pipelines.evaluation.analysis import ANALYSIS, Analysis
from pipelines.publishing.decisions import FOLDER, decision_on

LIST_TIME = "time of a list"
"""Name of the gate's verdict that holds the median of making a list, in milliseconds."""


@dataclass(frozen=True, kw_only=True)
class Measures:
    """Of one side; what is not known is absent."""

    beyond_accuracy: Mapping[str, float] = field(default_factory=dict)
    """By measure, such as coverage@10."""
    seconds: float | None = None
    """Of all stages together."""
    peak_memory: int | None = None
    bundle_bytes: int | None = None
    list_ms: float | None = None
    """Median time of making a list, as the release gate measured it."""
    host: str | None = None
    """Machine on which it was trained."""

    def cost(self, name: str) -> float | None:
        """Return a cost by the name of its field."""
        found: float | None = getattr(self, name)
        return found


COSTS = {
    "seconds": "training",
    "peak_memory": "memory of training",
    "bundle_bytes": "size of the bundle",
    "list_ms": "time of a list",
}


def measures_of(context: Context, side: Side, split: Split) -> Measures:
    """Read a side's measures; missing and broken files leave them out."""
    run = side.run
    path = run.path
    bundle, measured = _bundle(context, run), _measured(context, side)
    decisions = None if bundle is None else bundle.parent / FOLDER
    files = [path / "manifest.json"]
    files += [one for one in (bundle, decisions) if one is not None]
    if measured is not None:
        files.append(measured.run.path / "evaluate" / ANALYSIS)
    key = ("measures", run.key, side.model, split)
    return context.cache.get(key, files, lambda: _read(run, measured, split, bundle))


def _measured(context: Context, side: Side) -> Side | None:
    """Find the workspace whose evaluation measured a side; None where it measured another since."""
    run = side.run
    if run.kind == "workspace":
        return side
    try:
        maker = None if run.made_by is None else context.stores.run(run.made_by)
    except NotFoundError:
        return None
    if maker is None or maker.bundles[:1] != tuple(run.bundles[:1]) or maker.served is None:
        return None
    return Side(run=maker, model=maker.served)


def _read(run: Run, measured: Side | None, split: Split, bundle: Path | None) -> Measures:
    return Measures(
        beyond_accuracy={} if measured is None else _beyond_accuracy(measured, split),
        seconds=run.seconds,
        peak_memory=run.peak_memory,
        bundle_bytes=None if bundle is None else _size(bundle),
        list_ms=None if bundle is None else _list_time(bundle),
        host=_host(run.path),
    )


def _beyond_accuracy(side: Side, split: Split) -> Mapping[str, float]:
    try:
        orders = Analysis.load(side.run.path / "evaluate").orders
        order = answers(side.run, split).order
        model = orders[order][split].models[side.model]
    except (OSError, ValueError, KeyError, TypeError, NotFoundError):
        return {}
    return {name: value for name, value in model.beyond_accuracy.items() if math.isfinite(value)}


def _bundle(context: Context, run: Run) -> Path | None:
    """Find the bundle that a run released last, or is."""
    if run.kind == "bundle":
        return run.path
    if not run.bundles:
        return None
    for other in context.stores.bundles():
        if other.made_by == run.key and run.bundles[0] in other.bundles:
            return other.path
    return None


def _size(bundle: Path) -> int | None:
    document = _json(bundle / "manifest.json")
    files = document.get("files")
    if not isinstance(files, dict):
        return None
    return sum(int(one.get("size", 0)) for one in files.values() if isinstance(one, dict))


def _list_time(bundle: Path) -> float | None:
    try:
        written = decision_on(bundle.parent, bundle.name.removeprefix("bundle-"), None)
    except (OSError, ValueError):
        return None
    for verdict in () if written is None else written.decision.verdicts:
        if verdict.get("name") == LIST_TIME and verdict.get("value") is not None:
            return float(verdict["value"])
    return None


def _host(path: Path) -> str | None:
    hosts = {_json(one).get("host") for one in path.glob("train_*/run.json")} - {None}
    return str(hosts.pop()) if len(hosts) == 1 else None


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
