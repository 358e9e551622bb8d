"""Read the run of a workspace or a bundle from a few small files, never from its tables.

A file that is half written or damaged is named in `Run.problems`; nothing is raised.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from sys import intern
from typing import Any, TypeVar

from features.schema import GIVEN
from pipelines.candidates.blends import RANKED
from pipelines.dashboard.workspaces.files import (
    UnreadableError,
    changed_at,
    names_in,
    number,
    parse_time,
    place_key,
    read_or_empty,
    read_table,
)
from pipelines.dashboard.workspaces.run import Run, Status, dataset_name, flat, flat_settings
from pipelines.engine.artifacts import FORMAT, RUN, Manifest, digest_of_json
from pipelines.engine.decisions import read_decisions
from pipelines.engine.workspace import RELEASED, UPDATE, read_holder
from pipelines.publishing.comparison import served_row
from pipelines.publishing.promotion import REFUSED_BUNDLES
from pipelines.publishing.released import shop_workspace
from recsys.data.durable import PARTIAL
from serving.bundle.manifest import CURRENT, MANIFEST, SCHEMA_VERSION

WATCHED = ("", "evaluate/metrics.json", "lock")
"""Files whose times of change tell if a workspace must be read again: a stage that is made renames
its folder in the workspace, and a run writes into the lock when it begins and when it has ended."""
CONFIG = "config.toml"
PLAIN_NAMES = ("run", "runs", "workspace", "output")
PREFIX = "bundle-"
KEPT = ("config", "data_digest", "dataset", "seconds", "peak_memory")
"""Fields of a bundle's run that are read from its stages."""
T = TypeVar("T")


def _noted(problems: list[str], read: Callable[[], T]) -> T | None:
    """Read a file; None if it is damaged, which is noted."""
    try:
        return read()
    except (ValueError, OSError) as error:
        problems.append(str(error))
        return None


def finite_metrics(splits: object) -> dict[str, float]:
    """Return the finite values by ``<split>/<model>/<metric>``; other shapes are passed over."""
    found = {}
    for split, models in splits.items() if isinstance(splits, Mapping) else ():
        for model, values in models.items() if isinstance(models, Mapping) else ():
            for metric, value in values.items() if isinstance(values, Mapping) else ():
                if isinstance(value, (int, float)) and math.isfinite(value):
                    found[intern(f"{split}/{model}/{metric}")] = float(value)
    return found


def workspace_name(path: Path) -> str:
    """Return a run's name: its folder, and the one above if the name says little."""
    if path.name == UPDATE:
        return f"{workspace_name(path.parent)}/{UPDATE}"
    return f"{path.parent.name}/{path.name}" if path.name in PLAIN_NAMES else path.name


def sum_costs(stages: Sequence[Path]) -> dict[str, Any]:
    """Sum up time and memory of stages, and find the latest end, from their ``run.json``."""
    runs = [run for stage in stages if (run := read_or_empty(stage / RUN))]
    seconds = [number(run.get("seconds")) or 0.0 for run in runs]
    memory = [int(number(run.get("peak_memory_bytes")) or 0) for run in runs]
    began = [parse_time(run.get("started")) for run in runs]
    ends = [one + timedelta(seconds=s) for one, s in zip(began, seconds, strict=True) if one]
    return {
        "seconds": sum(seconds) if seconds else None,
        "peak_memory": max(memory, default=0) or None,
        "time": max(ends, default=None),
    }


def read_workspace(path: Path) -> Run:
    """Read a workspace's run."""
    problems: list[str] = []
    names = names_in(path)
    measured = _noted(problems, lambda: read_table(path / "evaluate/metrics.json")) or {}
    is_unreadable = bool(problems)
    text, config = "", dict[str, str]()
    try:
        text = (path / CONFIG).read_text(encoding="utf-8-sig")
        config = flat_settings(text)
    except (OSError, ValueError) as error:
        missing = "is missing, so its settings are not known"
        is_gone = isinstance(error, FileNotFoundError)
        problems.append(f"{CONFIG} {missing if is_gone else f'cannot be read: {error}'}")
    evaluated = _noted(problems, lambda: Manifest.read(path / "evaluate"))
    features = _noted(problems, lambda: Manifest.read(path / "build_features"))
    for other in {one.format for one in (evaluated, features) if one} - {FORMAT}:
        is_unreadable = True
        words = f"written in format {other}, not {FORMAT}: only its metrics are shown"
        problems.append(f"{words}. Run it in a new workspace to see the rest")
    release = _noted(problems, lambda: read_table(path / "release/release.json")) or {}
    metrics = finite_metrics((measured or {}).get(GIVEN, {}))
    status: Status = "unreadable" if is_unreadable else "complete"
    if not is_unreadable and not (evaluated and measured):
        status = "unfinished"
        problems.append(_missing(path, names))
    models = {name.split("/")[1] for name in metrics if name.startswith("test/")}
    if not read_or_empty(path / f"train_ranker/{GIVEN}/ranker.json").get("served"):
        models.discard(RANKED)
    costs = sum_costs([path / name for name in names])
    return Run(
        key=place_key(str(path.resolve())),
        name=workspace_name(path),
        kind="workspace",
        status=status,
        path=path,
        metrics=metrics,
        config=config,
        settings=text if config else "",
        data_digest=digest_of_json(features.files) if features else None,
        dataset=dataset_name(config),
        served=_served_among(models),
        bundles=_released(path, release),
        problems=tuple(problems),
        **{**costs, "time": costs["time"] or changed_at(path / CONFIG) or changed_at(path)},
    )


def _missing(path: Path, names: Sequence[str]) -> str:
    """Describe what an unfinished run has, and how to go on."""
    stages = [name for name in names if not name.startswith(PARTIAL)]
    words = f"not evaluated: {sum((path / one / MANIFEST).exists() for one in stages)} stages made"
    holder = read_holder(path / "lock")
    if holder:
        return f"{words}; it is running ({holder})"
    return f"{words}. Go on with: recsys run {path / CONFIG}"


def _served_among(models: set[str]) -> str | None:
    """Return the model of some whose list is served; None if it is not among them."""
    found = served_row({model: {} for model in models})
    return found if found in models else None


def _released(path: Path, release: Mapping[str, Any]) -> tuple[str, ...]:
    """List the versions that a workspace released itself, the newest first."""
    kind = "incremental" if path.name == UPDATE else "full"
    folder = shop_workspace(path) / RELEASED
    kept = {name: read_or_empty(folder / name / "released.json") for name in names_in(folder)}
    found = [(str(one.get("time")), name) for name, one in kept.items() if one.get("kind") == kind]
    newest = [str(release["version"])] if "version" in release else []
    return tuple(dict.fromkeys([*newest, *(name for _, name in sorted(found, reverse=True))]))


def bundles_in(folder: Path) -> Iterator[Path]:
    """List the bundles of a folder, and those that were refused."""
    for place in (folder, folder / REFUSED_BUNDLES):
        yield from (place / name for name in names_in(place) if name.startswith(PREFIX))


def read_bundle(path: Path) -> Run:
    """Read a bundle by itself; `complete_bundles` adds what others know of it."""
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
    models, schema = manifest.get("metrics", {}), manifest.get("schema_version")
    is_known = schema == SCHEMA_VERSION
    other = f"written in schema {schema}, not {SCHEMA_VERSION}: only its metrics are shown"
    return replace(
        basic,
        status="complete" if is_known else "unreadable",
        metrics=finite_metrics({"test": models}),
        known_digest=manifest.get("config_digest") or None,
        tags={"profile": profile} if (profile := str(manifest.get("profile", ""))) else {},
        served=_served_among(set(models)) if isinstance(models, Mapping) else None,
        problems=() if is_known else (other,),
    )


def complete_bundles(bundles: Sequence[Run], folder: Path, workspaces: Sequence[Run]) -> list[Run]:
    """Add decisions, makers, kept stages and the served one to the bundles of a folder."""
    decisions: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        # A copy that was fetched says less than the decision on it.
        known = [one.decision for one in read_decisions(folder, None)[0]]
        decisions = {one.challenger: one for one in known if one.outcome != "fetched"}
    kept = {
        version: _kept(released / version)
        for released in dict.fromkeys(shop_workspace(run.path) / RELEASED for run in workspaces)
        for version in names_in(released)
    }
    makers = {version: run for run in workspaces for version in run.bundles}
    served = os.path.realpath(folder / CURRENT)
    found = []
    for bundle in bundles:
        base = bundle.name.partition("+")[0]
        decision, maker = decisions.get(bundle.name), makers.get(base)
        facts = kept.get(base, {})
        if not facts and maker is not None and maker.config_digest == bundle.config_digest:
            facts = {name: getattr(maker, name) for name in KEPT}
        tags = dict(bundle.tags)
        if decision is not None and decision.outcome:
            tags["decision"] = str(decision.outcome)
        if os.path.realpath(bundle.path) == served:
            tags["served"] = "yes"
        dataset = facts.get("dataset") or next((run.dataset for run in workspaces), None)
        time = parse_time(decision.time) if decision is not None else None
        whole = {
            **facts,
            "dataset": dataset,
            "time": time or bundle.time,
            "tags": tags,
            "made_by": maker.key if maker else None,
        }
        found.append(replace(bundle, **whole))
    return found


def _kept(folder: Path) -> dict[str, Any]:
    """Read settings, data and costs of a released bundle from the stages that are kept."""
    config: dict[str, str] = {}
    data_digest, stages = None, [folder / name for name in names_in(folder)]
    for stage in stages:
        manifest = read_or_empty(stage / MANIFEST)
        config |= flat(manifest.get("config", {}))
        if stage.name == "build_features":
            data_digest = digest_of_json(manifest.get("files", {}))
    facts = {**sum_costs(stages), "config": config, "data_digest": data_digest}
    return {**{name: facts.get(name) for name in KEPT}, "dataset": dataset_name(config)}
