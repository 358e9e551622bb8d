"""Plan of a run with reasons, time and memory; nothing is written.

A stage's artefact is compared with what it would be made from: inputs, settings, code, libraries.
Time and memory are those of the stage's last run here.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pipelines.config.run import RunConfig
from pipelines.datasets.fetch import from_cache
from pipelines.datasets.registry import find_dataset
from pipelines.engine.artifacts import RUN, Manifest, read_json, to_json
from pipelines.engine.runner import build_context
from pipelines.engine.stage import Stage
from pipelines.engine.workspace import Workspace
from pipelines.partitions.manifest import PartitionsManifest
from pipelines.partitions.source import PartitionSource
from pipelines.presets.resolve import ONLINE_EVENTS, with_dataset, with_partitions
from recsys.data.durable import digest_of_file
from serving.online.opening import is_store

FEATURES = "build_features"
NEVER = "it was never made here"
MAX_NAMED = 3
"""Settings or files that are named; the rest is counted."""
Runs = Literal["yes", "no", "if changed", "fails"]


@dataclass(frozen=True)
class StagePlan:
    """Plan of one stage."""

    stage: str
    runs: Runs
    """``if changed``: unless what it reads comes out as it was."""
    why: tuple[str, ...]
    seconds: float | None = None
    """Time of its last run; None if it never ran here."""
    memory_bytes: int | None = None


@dataclass
class Arriving:
    """Data that a run brings in before its stages."""

    reasons: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """Plan of a run."""

    stages: tuple[StagePlan, ...]
    notes: tuple[str, ...] = ()

    @property
    def running(self) -> list[StagePlan]:
        return [one for one in self.stages if one.runs in ("yes", "if changed")]

    @property
    def unknown(self) -> list[str]:
        """Stages that would run and whose time is not known."""
        return [one.stage for one in self.running if one.seconds is None]

    @property
    def seconds(self) -> float:
        return sum(one.seconds or 0.0 for one in self.running)

    @property
    def memory_bytes(self) -> int:
        """Memory of the largest stage."""
        return max((one.memory_bytes or 0 for one in self.running), default=0)


def dry_run(
    stages: Sequence[Stage],
    config: RunConfig,
    *,
    force: Collection[str] = (),
    arriving: Arriving | None = None,
) -> RunPlan:
    """Plan a run."""
    workspace, arriving = Workspace(config.workspace), arriving or Arriving()
    plans: dict[str, StagePlan] = {}
    for stage in stages:
        sure = ["--force"] if stage.name in force else []
        if stage.name == FEATURES:
            sure += arriving.reasons
        if stage.name == FEATURES and not config.data.event_paths():
            run = read_run(workspace.stage(FEATURES))
            plans[FEATURES] = StagePlan(FEATURES, "yes", tuple(sure) or (NEVER,), *cost(run))
        else:
            plans[stage.name] = plan_stage(stage, config, workspace, plans, sure)
    return RunPlan(stages=tuple(plans.values()), notes=tuple(arriving.notes))


def with_known_files(config: RunConfig) -> tuple[RunConfig, Arriving]:
    """Point a configuration at the raw files that are here; downloads and ingests nothing."""
    arriving, data = Arriving(), config.data
    if data.partitions is not None:
        config = with_known_partitions(config, arriving)
    elif data.dataset is not None and from_cache(find_dataset(data.dataset)) is None:
        arriving.reasons.append(f"data set {data.dataset} is fetched first")
    else:
        config = with_dataset(config)
    if data.online_events is not None and is_store(data.online_events):
        folder = config.workspace / ONLINE_EVENTS
        exported = str(folder) if folder.is_dir() else None
        config = replace(config, data=replace(config.data, online_events=exported))
        arriving.notes.append(
            "events of the online store are exported first; new ones are not counted here"
        )
    return config, arriving


def with_known_partitions(config: RunConfig, arriving: Arriving) -> RunConfig:
    """Point a configuration at the partitions that were ingested, and list those that were not."""
    manifest = PartitionsManifest.read(config.workspace)
    known = {} if manifest is None else manifest.partitions
    aside = {} if manifest is None else manifest.set_aside
    listed_there = PartitionSource(str(config.data.partitions)).partitions()
    unread = {
        key: files
        for key, files in listed_there.items()
        if not any(key in of and of[key].files == files for of in (known, aside))
    }
    if new := [key for key in unread if key not in known]:
        arriving.reasons.append(f"new partitions: {listed(new)}")
    if corrected := [key for key in unread if key in known]:
        arriving.reasons.append(f"corrected partitions: {listed(corrected)}")
    if arriving.reasons:
        arriving.notes.append("partitions are ingested first; their events are not counted here")
    return with_partitions(config) if known else config


def plan_stage(
    stage: Stage,
    config: RunConfig,
    workspace: Workspace,
    before: Mapping[str, StagePlan],
    sure: Sequence[str],
) -> StagePlan:
    """Plan one stage after those that run before it."""
    inputs, missing, remade = {}, [], []
    for name, path in stage.raw_files(config).items():
        if path.is_file():
            inputs[name] = digest_of_file(path)
        else:
            missing.append(f"{name}: there is no file {path.absolute()}")
    for name in stage.input_stages(config):
        made = before.get(name)
        found = workspace.manifest(name)
        if made is not None and made.runs == "fails":
            missing.append(f"it reads {name}, which fails")
        elif made is not None and made.runs != "no":
            remade.append(name)
        elif found is None:
            missing.append(f"it reads {name}, which is not there (recsys run --until {name})")
        else:
            inputs[name] = found.output
    if missing:
        return StagePlan(stage.name, "fails", tuple(missing))
    planned = Manifest(
        stage=stage.name,
        inputs=inputs,
        config=stage.config_tables(config),
        versions=stage.versions(),
        rows={},
        files={},
    )
    why = [*sure, *reasons(stage, config, workspace, planned, remade)]
    if not why and not remade:
        return StagePlan(stage.name, "no", ("unchanged",))
    runs: Runs = "yes" if why else "if changed"
    if remade:
        why.append(f"it reads {listed(remade)}, made again")
    return StagePlan(stage.name, runs, tuple(why), *cost(read_run(workspace.stage(stage.name))))


def reasons(
    stage: Stage, config: RunConfig, workspace: Workspace, planned: Manifest, remade: Sequence[str]
) -> list[str]:
    """List the differences of a stage from its artefact; empty if it is up to date."""
    folder = workspace.stage(stage.name)
    made = Manifest.load(folder)
    if made is None:
        return [NEVER]
    if workspace.manifest(stage.name) is None:
        return ["a file of its artefact is missing"]
    inputs = {name: one for name, one in made.inputs.items() if name not in remade}
    found = [
        *differences(inputs, planned.inputs, ("changed: ", "new input: ", "no longer an input: ")),
        *setting_changes(made.config, json.loads(to_json(planned.config))),
        *version_changes(stage, folder, made.versions, planned.versions),
    ]
    if found or remade:
        return found
    context = build_context(stage, config, workspace, planned)
    return [] if stage.outputs_exist(context) else ["what it wrote outside its folder is not there"]


def differences(
    made: Mapping[str, Any], planned: Mapping[str, Any], words: tuple[str, str, str]
) -> list[str]:
    """List the names that changed, came and went, after their words."""
    groups = (
        [name for name in planned if name in made and made[name] != planned[name]],
        [name for name in planned if name not in made],
        [name for name in made if name not in planned],
    )
    return [f"{text}{listed(names)}" for text, names in zip(words, groups, strict=True) if names]


def setting_changes(made: Mapping[str, Any], planned: Mapping[str, Any]) -> list[str]:
    """List the settings that changed, with both values."""
    old, new = dict(flat(made)), dict(flat(planned))
    changed = {name: value for name, value in new.items() if name in old and old[name] != value}
    texts = [f"{name} = {short(value)} (was {short(old[name])})" for name, value in changed.items()]
    coming = [f"{name} = {short(value)}" for name, value in new.items() if name not in old]
    groups = {
        "setting ": texts,
        "new setting ": coming,
        "setting that is gone: ": [*(old.keys() - new.keys())],
    }
    return [f"{text}{listed(names)}" for text, names in groups.items() if names]


def version_changes(
    stage: Stage, folder: Path, made: Mapping[str, str], planned: Mapping[str, str]
) -> Iterator[str]:
    """List the libraries that changed, and the files of code that did."""
    if made.get("code") != planned.get("code"):
        old: dict[str, str] = read_run(folder).get("code", {})
        new = stage.code() if old else {}
        changed = [one for one in sorted(old.keys() | new.keys()) if old.get(one) != new.get(one)]
        yield "code" + (f": {listed(changed)}" if changed else " of this version of recsys")
    for name in {**planned, **made}:
        before, after = made.get(name), planned.get(name)
        if name != "code" and before != after:
            yield f"library {name} {after or 'not used'} (was {before or 'not used'})"


def flat(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Walk nested tables as dotted keys."""
    for name, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def short(value: object) -> str:
    """Write a setting's value in a few letters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:37]}..."


def listed(names: Sequence[str]) -> str:
    """List a few names and count the rest."""
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def read_run(folder: Path) -> dict[str, Any]:
    """Read a stage's ``run.json``; empty where there is none."""
    path = folder / RUN
    found: dict[str, Any] = read_json(path) if path.exists() else {}
    return found


def cost(run: Mapping[str, Any]) -> tuple[float | None, int | None]:
    """Return seconds and bytes of memory of a stage's last run."""
    return run.get("seconds"), run.get("peak_memory_bytes") or None
