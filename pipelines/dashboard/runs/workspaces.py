"""Read the run of a workspace from its artefacts: a few small files, never its tables.

What a run is half through or what cannot be read is said in `Run.problems`; nothing is raised.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
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
    released_order,
    time_of,
)
from pipelines.dashboard.runs.find import RELEASED, UPDATE
from pipelines.dashboard.runs.run import Run, Status
from pipelines.dashboard.runs.settings import (
    CONFIG,
    Settings,
    dataset_of,
    read_settings,
)
from pipelines.engine.artifacts import FORMAT, MANIFEST, RUN, Manifest, digest_of_json
from pipelines.engine.workspace import holder_of
from pipelines.publishing.checks import served_row
from pipelines.publishing.released import shop_workspace
from pipelines.ranking.artefact import RANKED
from recsys.data.durable import PARTIAL
from serving.bundle.manifest import bundle_directory

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
