"""Read the run of a workspace from its artefacts: a few small files, never its tables.

What a run is half through or what cannot be read is said in `Run.problems`; nothing is raised.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pipelines.dashboard.workspaces.files import (
    CONFIG,
    Settings,
    UnreadableError,
    changed_at,
    dataset_of,
    finite,
    flat,
    key_of,
    named_values,
    names_in,
    read_settings,
    read_table,
    released_order,
    time_of,
)
from pipelines.dashboard.workspaces.find import RELEASED, UPDATE
from pipelines.dashboard.workspaces.run import Run, Status
from pipelines.engine.artifacts import FORMAT, RUN, Manifest, digest_of_json
from pipelines.engine.workspace import holder_of
from pipelines.publishing.checks import served_row
from pipelines.publishing.decisions import FOLDER as DECISIONS
from pipelines.publishing.released import shop_workspace
from pipelines.ranking.artefact import RANKED
from recsys.data.durable import PARTIAL
from serving.bundle.manifest import CURRENT, MANIFEST, SCHEMA_VERSION, bundle_directory

WATCHED = ("", "evaluate/metrics.json", "lock")
"""Whose times of change say whether a workspace must be read anew: a stage that is made renames its
folder in the workspace's, and a run writes into the lock when it begins and when it has ended."""


PLAIN_NAMES = ("run", "runs", "workspace", "output")


@dataclass
class _Reading:
    """What was found so far."""

    path: Path
    problems: list[str] = field(default_factory=list)
    unreadable: bool = False

    def table(self, name: str) -> Mapping[str, Any]:
        """Read a JSON file; empty where there is none or it is damaged, which is noted."""
        try:
            return read_table(self.path / name) or {}
        except UnreadableError as error:
            self.problems.append(str(error))
            self.unreadable = self.unreadable or name.startswith("evaluate/")
            return {}

    def settings(self) -> Settings:
        """Read the configuration likewise."""
        try:
            found = read_settings(self.path)
        except UnreadableError as error:
            self.problems.append(str(error))
            return Settings()
        if found is None:
            self.problems.append(f"{CONFIG} is missing, so its settings are not known")
        return found or Settings()


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What the stages of a run took."""

    seconds: float | None
    peak_memory: int | None
    ended: datetime | None

    @classmethod
    def of(cls, runs: Sequence[Mapping[str, Any]]) -> Costs:
        """Sum them up; from the ``run.json`` of each stage."""
        seconds = [_number(run.get("seconds")) for run in runs]
        memory = [int(_number(run.get("peak_memory_bytes"))) for run in runs]
        started = [(time_of(run.get("started")), _number(run.get("seconds"))) for run in runs]
        ended = [time + timedelta(seconds=took) for time, took in started if time is not None]
        return cls(
            seconds=sum(seconds) if seconds else None,
            peak_memory=max(memory, default=0) or None,
            ended=max(ended, default=None),
        )


def name_of(path: Path) -> str:
    """Name a run by its folder, and by the one above where the name says little."""
    if path.name == UPDATE:
        return f"{name_of(path.parent)}/{UPDATE}"
    return f"{path.parent.name}/{path.name}" if path.name in PLAIN_NAMES else path.name


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def read_workspace(path: Path) -> Run:
    """Read a workspace's run."""
    reading = _Reading(path)
    names = set(names_in(path))
    settings = reading.settings()
    measured = reading.table("evaluate/metrics.json")
    order = released_order(measured) if measured else None
    metrics, none = finite(named_values(measured[order] if order else {}))
    costs = Costs.of([run for name in names if (run := _run_of(path / name))])
    manifest = _manifest(path / "evaluate", reading)
    features = _manifest(path / "build_features", reading)
    _check_formats(reading, [one for one in (manifest, features) if one])
    release = reading.table("release/release.json")
    status = _status(reading, names, manifest is not None and bool(measured))
    reading.problems += none
    return Run(
        key=key_of(str(path.resolve())),
        name=name_of(path),
        kind="workspace",
        status=status,
        time=costs.ended or changed_at(path / CONFIG) or changed_at(path),
        path=path,
        metrics=metrics,
        config=settings.flat,
        config_digest=_config_digest(path, release, manifest, settings),
        data_digest=digest_of_json(features.files) if features else None,
        dataset=dataset_of(settings.flat),
        seconds=costs.seconds,
        peak_memory=costs.peak_memory,
        tags={"tie order": order} if order and len(measured) > 1 else {},
        served=_served(reading, order, metrics),
        bundles=_released(path, release),
        evaluation=manifest.making if manifest else None,
        problems=tuple(reading.problems),
    )


def _run_of(stage: Path) -> Mapping[str, Any] | None:
    try:
        return read_table(stage / RUN)
    except UnreadableError:
        return None


def _manifest(stage: Path, reading: _Reading) -> Manifest | None:
    try:
        return Manifest.read(stage)
    except (ValueError, OSError) as error:
        reading.problems.append(str(error))
        return None


def _check_formats(reading: _Reading, manifests: Sequence[Manifest]) -> None:
    others = {one.format for one in manifests if one.format != FORMAT}
    if others:
        reading.unreadable = True
        reading.problems.append(
            f"written in format {min(others)}; this version of recsys reads format {FORMAT}, so "
            "only its metrics are shown. Run it in a new workspace to see the rest"
        )


def _status(reading: _Reading, names: set[str], is_measured: bool) -> Status:
    if reading.unreadable:
        return "unreadable"
    if is_measured:
        return "complete"
    half = sorted(name.removeprefix(PARTIAL) for name in names if name.startswith(PARTIAL))
    whole = [name for name in names if not name.startswith(PARTIAL)]
    made = sum((reading.path / name / MANIFEST).exists() for name in whole)
    words = f"not evaluated: {made} stages are made"
    words += f", {', '.join(half)} is half written" if half else ""
    holder = holder_of(reading.path / "lock") if "lock" in names else ""
    if holder:
        reading.problems.append(f"{words}; it is running ({holder})")
    else:
        reading.problems.append(f"{words}. Go on with: recsys run --config {reading.path / CONFIG}")
    return "unfinished"


def _config_digest(
    path: Path,
    release: Mapping[str, Any],
    evaluated: Manifest | None,
    settings: Settings,
) -> str | None:
    """Take the digest from the bundle that this very evaluation released, or compute it."""
    try:
        made = read_table(path / "release" / MANIFEST) or {}
        folder = settings.flat.get("release.bundles") or path / "bundles"
        is_of_this = evaluated and made.get("inputs", {}).get("evaluate") == evaluated.output
        if is_of_this and "version" in release:
            directory = bundle_directory(Path(folder), str(release["version"]))
            if digest := (read_table(directory / MANIFEST) or {}).get("config_digest"):
                return str(digest)
    except (UnreadableError, AttributeError):
        pass
    return settings.digest


def _served(reading: _Reading, order: str | None, metrics: Mapping[str, float]) -> str | None:
    models = {name.split("/")[1] for name in metrics if name.startswith("test/")}
    if not models or order is None:
        return None
    if RANKED in models:
        decision = reading.table(f"train_ranker/{order}/ranker.json")
        if not decision.get("served"):
            models.discard(RANKED)
    found = served_row({model: {} for model in models})
    return found if found in models else None


def _released(path: Path, release: Mapping[str, Any]) -> tuple[str, ...]:
    """List the versions that a workspace released itself, the newest first."""
    kind = "incremental" if path.name == UPDATE else "full"
    folder = shop_workspace(path) / RELEASED
    found: list[tuple[str, str]] = []
    for name in names_in(folder):
        try:
            kept = json.loads((folder / name / "released.json").read_bytes())
            if kept.get("kind") == kind:
                found.append((str(kept.get("time")), name))
        except (OSError, ValueError, AttributeError):
            continue
    versions = [version for _, version in sorted(found, reverse=True)]
    newest = [str(release["version"])] if "version" in release else []
    return tuple(dict.fromkeys([*newest, *versions]))


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
        served=_served_bundle(manifest),
        problems=tuple(problems),
    )


def _tags(manifest: Mapping[str, Any]) -> dict[str, str]:
    parent = manifest.get("parent")
    tags = {"profile": str(manifest.get("profile", ""))}
    if isinstance(parent, Mapping):
        tags["delta of"] = str(parent.get("version"))
    return {name: value for name, value in tags.items() if value}


def _served_bundle(manifest: Mapping[str, Any]) -> str | None:
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
