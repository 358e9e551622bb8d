"""Measures beyond accuracy, and costs: from a side's evaluation, run and release."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from features.schema import GIVEN
from pipelines.config.release import TIMED
from pipelines.dashboard.context import Context
from pipelines.dashboard.data.answers import Side, answers
from pipelines.dashboard.query import NotFoundError
from pipelines.dashboard.workspaces.files import read_or_empty
from pipelines.engine.decisions import LOG, decision_on
from pipelines.engine.formats import duration, size
from pipelines.evaluation.analysis import ANALYSIS, Analysis

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
    run, bundle = side.run, None
    measured: Side | None = side
    if run.kind == "bundle":
        bundle, maker = run.path, context.stores.maker(run)
        # A workspace that released another bundle since then measured that one.
        if maker is None or maker.bundles[:1] != tuple(run.bundles[:1]) or maker.served is None:
            measured = None
        else:
            measured = Side(run=maker, model=maker.served)
    else:
        made = (one for one in context.stores.bundles() if one.made_by == run.key)
        newest = {*run.bundles[:1]}
        bundle = next((one.path for one in made if newest & {*one.bundles}), None)
    files = [run.path / "manifest.json"]
    files += [] if bundle is None else [bundle, bundle.parent / LOG]
    files += [] if measured is None else [measured.run.path / "evaluate" / ANALYSIS]

    def read() -> Measures:
        hosts = {read_or_empty(one).get("host") for one in run.path.glob("train_*/run.json")}
        hosts -= {None}
        costs: dict[str, float | None] = {"seconds": run.seconds, "peak_memory": run.peak_memory}
        if bundle is not None:
            costs |= _bundle_costs(bundle)
        lists = {} if measured is None else _beyond_accuracy(measured)
        return Measures(lists, costs, str(hosts.pop()) if len(hosts) == 1 else None)

    return context.cache.get(("measures", run.key, side.model), files, read)


def _beyond_accuracy(side: Side) -> Mapping[str, float]:
    try:
        found = answers(side.run)
        analysis = Analysis.load(side.run.path / "evaluate").orders[GIVEN][found.split]
        model = analysis.models[side.model]
    except (OSError, ValueError, KeyError, TypeError, NotFoundError):
        return {}
    return {name: value for name, value in model.beyond_accuracy.items() if math.isfinite(value)}


def _bundle_costs(bundle: Path) -> dict[str, float | None]:
    """Read the size of a bundle, and the time of a list that the gate measured."""
    costs: dict[str, float | None] = {}
    files = read_or_empty(bundle / "manifest.json").get("files")
    if isinstance(files, dict):
        costs["bundle_bytes"] = sum(
            one.get("size", 0) for one in files.values() if isinstance(one, dict)
        )
    try:
        written = decision_on(bundle.parent, bundle.name.removeprefix("bundle-"), None)
    except (OSError, ValueError):
        return costs
    for verdict in () if written is None else written.decision.verdicts:
        if verdict.get("name") == TIMED and verdict.get("value") is not None:
            costs["list_ms"] = float(verdict["value"])
    return costs
