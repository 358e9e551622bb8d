"""Read the run of a workspace or a bundle from a few small files, never from its tables.

A file that is half written or damaged is named in `Run.problems`; nothing is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pipelines.candidates.blends import RANKED
from pipelines.dashboard.workspaces.files import (
    CONFIG,
    RunSettings,
    UnreadableError,
    changed_at,
    dataset_name,
    finite_metrics,
    names_in,
    number,
    parse_time,
    place_key,
    read_or_empty,
    read_settings,
    read_table,
    released_order,
)
from pipelines.dashboard.workspaces.find import RELEASED, UPDATE
from pipelines.dashboard.workspaces.run import Run, Status
from pipelines.engine.artifacts import FORMAT, RUN, Manifest, digest_of_json
from pipelines.engine.workspace import read_holder
from pipelines.publishing.comparison import served_row
from pipelines.publishing.promotion import REFUSED_BUNDLES
from pipelines.publishing.released import shop_workspace
from recsys.data.durable import PARTIAL
from serving.bundle.manifest import MANIFEST, SCHEMA_VERSION

WATCHED = ("", "evaluate/metrics.json", "lock")
"""Files whose times of change tell if a workspace must be read again: a stage that is made renames
its folder in the workspace, and a run writes into the lock when it begins and when it has ended."""
PLAIN_NAMES = ("run", "runs", "workspace", "output")
PREFIX = "bundle-"
T = TypeVar("T")


def _noted(problems: list[str], read: Callable[[], T | None]) -> T | None:
    """Read a file; None if there is none or it is damaged, which is noted."""
    try:
        return read()
    except (ValueError, OSError) as error:
        problems.append(str(error))
        return None


def sum_costs(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Sum up time and memory of stages, and find the latest end, from their ``run.json``."""
    seconds = [number(run.get("seconds")) or 0.0 for run in runs]
    memory = [int(number(run.get("peak_memory_bytes")) or 0) for run in runs]
    began = [parse_time(run.get("started")) for run in runs]
    ends = [one + timedelta(seconds=s) for one, s in zip(began, seconds, strict=True) if one]
    return {
        "seconds": sum(seconds) if seconds else None,
        "peak_memory": max(memory, default=0) or None,
        "time": max(ends, default=None),
    }


def workspace_name(path: Path) -> str:
    """Return a run's name: its folder, and the one above if the name says little."""
    if path.name == UPDATE:
        return f"{workspace_name(path.parent)}/{UPDATE}"
    return f"{path.parent.name}/{path.name}" if path.name in PLAIN_NAMES else path.name


def read_workspace(path: Path) -> Run:
    """Read a workspace's run."""
    problems: list[str] = []
    names = names_in(path)
    measured = _noted(problems, lambda: read_table(path / "evaluate/metrics.json")) or {}
    is_unreadable = bool(problems)
    settings = _noted(problems, lambda: read_settings(path))
    if settings is None:
        settings = RunSettings()
        if not (path / CONFIG).exists():
            problems.append(f"{CONFIG} is missing, so its settings are not known")
    manifests = {
        stage: _noted(problems, partial(Manifest.read, path / stage))
        for stage in ("evaluate", "build_features")
    }
    for other in {one.format for one in manifests.values() if one} - {FORMAT}:
        is_unreadable = True
        problems.append(
            f"written in format {other}; this version of recsys reads format {FORMAT}, so only "
            "its metrics are shown. Run it in a new workspace to see the rest"
        )
    release = _noted(problems, lambda: read_table(path / "release/release.json")) or {}
    order = released_order(measured) if measured else None
    metrics, none = finite_metrics(measured[order] if order else {})
    served = _served(path, order, metrics)
    status: Status = "unreadable" if is_unreadable else "complete"
    if not is_unreadable and not (manifests["evaluate"] and measured):
        status = "unfinished"
        problems.append(_missing(path, names))
    features = manifests["build_features"]
    costs = sum_costs([run for name in names if (run := read_or_empty(path / name / RUN))])
    return Run(
        key=place_key(str(path.resolve())),
        name=workspace_name(path),
        kind="workspace",
        status=status,
        path=path,
        metrics=metrics,
        config=settings.flat,
        settings=settings.text,
        data_digest=digest_of_json(features.files) if features else None,
        dataset=dataset_name(settings.flat),
        tags={"tie order": order} if order and len(measured) > 1 else {},
        served=served,
        bundles=_released(path, release),
        problems=(*problems, *none),
        **{**costs, "time": costs["time"] or changed_at(path / CONFIG) or changed_at(path)},
    )


def _missing(path: Path, names: Sequence[str]) -> str:
    """Describe what an unfinished run has, and how to go on."""
    half = [name.removeprefix(PARTIAL) for name in names if name.startswith(PARTIAL)]
    whole = [name for name in names if not name.startswith(PARTIAL)]
    made = sum((path / name / MANIFEST).exists() for name in whole)
    words = f"not evaluated: {made} stages are made"
    words += f", {', '.join(half)} is half written" if half else ""
    holder = read_holder(path / "lock") if "lock" in names else ""
    if holder:
        return f"{words}; it is running ({holder})"
    return f"{words}. Go on with: recsys run {path / CONFIG}"


def _served(path: Path, order: str | None, metrics: Mapping[str, float]) -> str | None:
    models = {name.split("/")[1] for name in metrics if name.startswith("test/")}
    if RANKED in models and not read_or_empty(path / f"train_ranker/{order}/ranker.json").get(
        "served"
    ):
        models.discard(RANKED)
    return _served_among(models)


def _served_among(models: set[str]) -> str | None:
    """Return the model of some whose list is served; None if it is not among them."""
    found = served_row({model: {} for model in models})
    return found if found in models else None


def _released(path: Path, release: Mapping[str, Any]) -> tuple[str, ...]:
    """List the versions that a workspace released itself, the newest first."""
    kind = "incremental" if path.name == UPDATE else "full"
    folder = shop_workspace(path) / RELEASED
    found = []
    for name in names_in(folder):
        kept = read_or_empty(folder / name / "released.json")
        if kept.get("kind") == kind:
            found.append((str(kept.get("time")), name))
    newest = [str(release["version"])] if "version" in release else []
    return tuple(dict.fromkeys([*newest, *(name for _, name in sorted(found, reverse=True))]))


def bundles_in(folder: Path) -> Iterator[Path]:
    """List the bundles of a folder, and those that were refused."""
    for place in (folder, folder / REFUSED_BUNDLES):
        yield from (place / name for name in names_in(place) if name.startswith(PREFIX))


def read_bundle(path: Path) -> Run:
    """Read a bundle by itself; `completed` adds what others know of it."""
    version = path.name.removeprefix(PREFIX)
    basic = Run(
        key=place_key(str(path.parent.resolve() / path.name)),
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
    models = manifest.get("metrics", {})
    metrics, problems = finite_metrics({"test": models})
    schema = manifest.get("schema_version")
    if schema != SCHEMA_VERSION:
        words = (
            f"written in schema {schema}; this version of recsys reads {SCHEMA_VERSION}, so only "
            "its metrics are shown"
        )
        problems.insert(0, words)
    tags = {"profile": str(manifest.get("profile", ""))}
    if isinstance(parent := manifest.get("parent"), Mapping):
        tags["delta of"] = str(parent.get("version"))
    return replace(
        basic,
        status="complete" if schema == SCHEMA_VERSION else "unreadable",
        metrics=metrics,
        known_digest=manifest.get("config_digest") or None,
        tags={name: value for name, value in tags.items() if value},
        served=_served_among(set(models)) if isinstance(models, Mapping) else None,
        problems=tuple(problems),
    )
