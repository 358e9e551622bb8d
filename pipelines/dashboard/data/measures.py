"""Measures beyond accuracy, and costs: from a side's evaluation, run and release."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pipelines.dashboard.context import Context
from pipelines.dashboard.data.answers import Side, answers
from pipelines.dashboard.query import NotFoundError
from pipelines.dashboard.workspaces.files import read_or_empty
from pipelines.dashboard.workspaces.run import Run
from pipelines.engine.formats import duration, size
from pipelines.evaluation.analysis import ANALYSIS, Analysis
from pipelines.publishing.write_release import TIMED
from pipelines.tracking.decisions import LOG, decision_on

COSTS = {
    "seconds": "training",
    "peak_memory": "memory of training",
    "bundle_bytes": "size of the bundle",
    "list_ms": "time of a list",
}


class Measures(NamedTuple):
    """Measures of one side; unknown ones are absent."""

    beyond_accuracy: Mapping[str, float] = {}
    """By measure, such as coverage@10."""
    costs: Mapping[str, float | None] = {}
    """By the names of `COSTS`: seconds and bytes of all stages, of the bundle, median of a list."""
    host: str | None = None
    """Machine on which it was trained."""


def cost_words(name: str, value: float) -> str:
    """Format a cost with its unit."""
    if name == "seconds":
        return duration(value)
    return f"{value:.1f} ms" if name == "list_ms" else size(value)


def read_measures(context: Context, side: Side) -> Measures:
    """Read a side's measures; missing and broken files leave them out."""
    run = side.run
    bundle, measured = _bundle(context, run), _measured(context, side)
    files = [run.path / "manifest.json"]
    files += [] if bundle is None else [bundle, bundle.parent / LOG]
    files += [] if measured is None else [measured.run.path / "evaluate" / ANALYSIS]

    def read() -> Measures:
        hosts = {read_or_empty(one).get("host") for one in run.path.glob("train_*/run.json")}
        hosts -= {None}
        costs: dict[str, float | None] = {"seconds": run.seconds, "peak_memory": run.peak_memory}
        if bundle is not None:
            costs |= {"bundle_bytes": _size(bundle), "list_ms": _list_time(bundle)}
        lists = {} if measured is None else _beyond_accuracy(measured)
        return Measures(lists, costs, str(hosts.pop()) if len(hosts) == 1 else None)

    return context.cache.get(("measures", run.key, side.model), files, read)


def _measured(context: Context, side: Side) -> Side | None:
    """Find the workspace whose evaluation measured a side; None if it measured another since."""
    run = side.run
    if run.kind == "workspace":
        return side
    maker = context.stores.maker(run)
    if maker is None or maker.bundles[:1] != tuple(run.bundles[:1]) or maker.served is None:
        return None
    return Side(run=maker, model=maker.served)


def _beyond_accuracy(side: Side) -> Mapping[str, float]:
    try:
        found = answers(side.run)
        analysis = Analysis.load(side.run.path / "evaluate").orders[found.order][found.split]
        model = analysis.models[side.model]
    except (OSError, ValueError, KeyError, TypeError, NotFoundError):
        return {}
    return {name: value for name, value in model.beyond_accuracy.items() if math.isfinite(value)}


def _bundle(context: Context, run: Run) -> Path | None:
    """Find the bundle that a run released last, or is."""
    if run.kind == "bundle":
        return run.path
    made = (one for one in context.stores.bundles() if one.made_by == run.key)
    return next((one.path for one in made if {*run.bundles[:1]} & {*one.bundles}), None)


def _size(bundle: Path) -> int | None:
    files = read_or_empty(bundle / "manifest.json").get("files")
    if not isinstance(files, dict):
        return None
    return sum(int(one.get("size", 0)) for one in files.values() if isinstance(one, dict))


def _list_time(bundle: Path) -> float | None:
    try:
        written = decision_on(bundle.parent, bundle.name.removeprefix("bundle-"), None)
    except (OSError, ValueError):
        return None
    for verdict in () if written is None else written.decision.verdicts:
        if verdict.get("name") == TIMED and verdict.get("value") is not None:
            return float(verdict["value"])
    return None
