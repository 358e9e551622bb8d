"""Bundles with what others know of them: decisions, makers, and the stages that are kept."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipelines.dashboard.workspaces.files import (
    dataset_name,
    flat,
    names_in,
    parse_time,
    read_or_empty,
)
from pipelines.dashboard.workspaces.find import RELEASED
from pipelines.dashboard.workspaces.read import sum_costs
from pipelines.dashboard.workspaces.run import Run
from pipelines.engine.artifacts import MANIFEST, RUN, digest_of_json
from pipelines.publishing.released import shop_workspace
from pipelines.tracking.decisions import read_decisions
from serving.bundle.manifest import CURRENT

KEPT = ("config", "data_digest", "dataset", "seconds", "peak_memory")
"""Fields of a bundle's run that are read from its stages."""


def completed(bundles: Sequence[Run], folder: Path, workspaces: Sequence[Run]) -> list[Run]:
    """Add decisions, makers and the served one to the bundles of a folder."""
    decisions: dict[str, Mapping[str, Any]] = {}
    with suppress(OSError, ValueError):
        # A copy that was fetched says less than the decision on it.
        known = [one.decision for one in read_decisions(folder, None)[0]]
        decisions = {one.challenger: vars(one) for one in known if one.outcome != "fetched"}
    kept: dict[str, dict[str, Any]] = {}
    for run in workspaces:
        released = shop_workspace(run.path) / RELEASED
        kept |= {version: _kept(released / version) for version in names_in(released)}
    makers = {version: run for run in workspaces for version in run.bundles}
    served = os.path.realpath(folder / CURRENT)
    found = []
    for bundle in bundles:
        base = bundle.name.partition("+")[0]
        decision, maker, below = (
            decisions.get(bundle.name, {}),
            makers.get(base),
            kept.get(base, {}),
        )
        if not below and maker is not None and maker.config_digest == bundle.config_digest:
            below = {name: getattr(maker, name) for name in KEPT}
        tags = dict(bundle.tags)
        if "outcome" in decision:
            tags["decision"] = str(decision["outcome"])
        if os.path.realpath(bundle.path) == served:
            tags["served"] = "yes"
        dataset = below.get("dataset") or next((run.dataset for run in workspaces), None)
        found.append(
            replace(
                bundle,
                **{**below, "dataset": dataset},
                time=parse_time(decision.get("time")) or bundle.time,
                tags=tags,
                made_by=maker.key if maker else None,
            )
        )
    return found


def _kept(folder: Path) -> dict[str, Any]:
    """Read settings, data and costs of a released bundle from the stages that are kept."""
    config: dict[str, str] = {}
    runs, data_digest = [], None
    for stage in names_in(folder):
        manifest = read_or_empty(folder / stage / MANIFEST)
        config |= flat(manifest.get("config", {}))
        if run := read_or_empty(folder / stage / RUN):
            runs.append(run)
        if stage == "build_features":
            data_digest = digest_of_json(manifest.get("files", {}))
    costs = sum_costs(runs)
    del costs["time"]
    return {"config": config, "data_digest": data_digest, "dataset": dataset_name(config), **costs}
