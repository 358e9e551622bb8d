"""Read released bundles, refused ones as well, as runs: their manifests, and what was decided."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipelines.dashboard.runs.documents import (
    UnreadableError,
    changed_at,
    finite,
    key_of,
    named_values,
    names_in,
    read_table,
    time_of,
)
from pipelines.dashboard.runs.find import RELEASED
from pipelines.dashboard.runs.run import Run
from pipelines.dashboard.runs.settings import dataset_of, flat
from pipelines.dashboard.runs.workspaces import Costs
from pipelines.engine.artifacts import RUN, digest_of_json
from pipelines.publishing.checks import served_row
from pipelines.publishing.decisions import FOLDER as DECISIONS
from pipelines.publishing.released import shop_workspace
from serving.bundle.manifest import CURRENT, MANIFEST, SCHEMA_VERSION

PREFIX, REFUSED = "bundle-", "refused"


def bundles_in(folder: Path) -> Iterator[Path]:
    """List the bundles of a folder, and those that were refused."""
    for place in (folder, folder / REFUSED):
        yield from (place / name for name in names_in(place) if name.startswith(PREFIX))


def read_bundle(path: Path) -> Run:
    """Read a bundle by itself; `completed` adds what others know of it."""
    version = path.name.removeprefix(PREFIX)
    key = key_of(str(path.parent.resolve() / path.name))
    basic = Run(
        key=key,
        name=version,
        kind="bundle",
        status="complete",
        time=changed_at(path / MANIFEST) or changed_at(path),
        path=path,
        bundles=(version,),
    )
    try:
        manifest = read_table(path / MANIFEST)
    except UnreadableError as error:
        return replace(basic, status="unreadable", problems=(str(error),))
    if manifest is None:
        missing = f"{MANIFEST} is missing, so the bundle was not written whole; nothing serves it"
        return replace(basic, status="unfinished", problems=(missing,))
    metrics, problems = finite(named_values({"test": manifest.get("metrics", {})}))
    schema = manifest.get("schema_version")
    if schema != SCHEMA_VERSION:
        problems.insert(
            0,
            f"written in schema {schema}; this version of recsys reads {SCHEMA_VERSION}, so only "
            "its metrics are shown",
        )
    return replace(
        basic,
        status="complete" if schema == SCHEMA_VERSION else "unreadable",
        metrics=metrics,
        config_digest=manifest.get("config_digest") or None,
        tags=_tags(manifest),
        served=_served(manifest),
        problems=tuple(problems),
    )


def _tags(manifest: Mapping[str, Any]) -> dict[str, str]:
    parent = manifest.get("parent")
    tags = {"profile": str(manifest.get("profile", ""))}
    if isinstance(parent, Mapping):
        tags["delta of"] = str(parent.get("version"))
    return {name: value for name, value in tags.items() if value}


def _served(manifest: Mapping[str, Any]) -> str | None:
    models = manifest.get("metrics")
    if not isinstance(models, Mapping):
        return None
    found = served_row(models)
    return found if found in models else None


def decided_in(folder: Path) -> dict[str, Mapping[str, Any]]:
    """Read the latest decision on each version; files that cannot be read are passed over."""
    found: dict[str, Mapping[str, Any]] = {}
    for name in names_in(folder / DECISIONS):
        try:
            document = read_table(folder / DECISIONS / name) if name.endswith(".json") else None
        except UnreadableError:
            continue
        if document and isinstance(document.get("challenger"), str):
            found[document["challenger"]] = document
    return found


def completed(
    bundles: Sequence[Run], folder: Path, workspaces: Sequence[Run], kept: Mapping[str, Run]
) -> list[Run]:
    """Add to bundles of a folder what was decided on them, what is served, and who made them.

    Args:
        workspaces: Whose bundles lie in the folder.
        kept: What `read_kept` found, by version.
    """
    decisions = decided_in(folder)
    served = os.path.realpath(folder / CURRENT)
    makers = {version: run for run in workspaces for version in run.bundles}
    found = []
    for bundle in bundles:
        version = bundle.name
        base = version.partition("+")[0]
        decision, maker = decisions.get(version, {}), makers.get(base)
        below = kept.get(base)
        if below is None and maker is not None and maker.config_digest == bundle.config_digest:
            below = maker
        tags = dict(bundle.tags)
        if "outcome" in decision:
            tags["decision"] = str(decision["outcome"])
        if os.path.realpath(bundle.path) == served:
            tags["served"] = "yes"
        dataset = (below and below.dataset) or next((run.dataset for run in workspaces), None)
        found.append(
            replace(
                bundle,
                time=time_of(decision.get("time")) or bundle.time,
                tags=tags,
                made_by=maker.key if maker else None,
                dataset=dataset,
                config=below.config if below else {},
                data_digest=below.data_digest if below else None,
                seconds=below.seconds if below else None,
                peak_memory=below.peak_memory if below else None,
            )
        )
    return found


def read_kept(workspace: Path) -> dict[str, Run]:
    """Read what workspaces keep of the runs behind released bundles, by version."""
    folder = shop_workspace(workspace) / RELEASED
    return {version: _kept(folder / version) for version in names_in(folder)}


def _kept(folder: Path) -> Run:
    """Read settings, data and costs; of the stages that are kept alone."""
    config: dict[str, str] = {}
    runs, data_digest = [], None
    for stage in names_in(folder):
        try:
            manifest = read_table(folder / stage / MANIFEST) or {}
            runs.append(read_table(folder / stage / RUN) or {})
        except UnreadableError:
            continue
        config |= flat(manifest.get("config", {}))
        if stage == "build_features":
            data_digest = digest_of_json(manifest.get("files", {}))
    costs = Costs.of([run for run in runs if run])
    return Run(
        key="",
        name=folder.name,
        kind="bundle",
        status="complete",
        time=costs.ended,
        path=folder,
        config=config,
        data_digest=data_digest,
        dataset=dataset_of(config),
        seconds=costs.seconds,
        peak_memory=costs.peak_memory,
    )
