"""Choice of an update: a day's increment, a full run, or nothing; with the reason in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from pipelines.config.removed import REMOVED_KEYS
from pipelines.config.run import RunConfig
from pipelines.config.toml import without_keys
from pipelines.engine.artifacts import Manifest, digest_of_json
from pipelines.engine.history import read_result
from pipelines.engine.workspace import RELEASED, DailyState, bundles_dir
from pipelines.publishing.promotion import served_version
from pipelines.publishing.released import Released, read_settings, released_folder
from pipelines.stages.build_features import raw_files
from pipelines.stages.list import STAGES
from recsys.data.durable import digest_once

Kind = Literal["incremental", "full", "nothing"]
IGNORED = {"build_features": ("splits",), "train_ranker": ("evaluation",)}
"""Sections of a stage that may differ between the served bundle's run and an increment."""


@dataclass(frozen=True)
class UpdateDecision:
    """Kind of an update, and why."""

    kind: Kind
    reason: str
    base: Path | None = None


def decide(config: RunConfig) -> UpdateDecision:
    """Decide by the settings, the served bundle and the events that arrived."""
    version = served_version(bundles_dir(config))
    if config.updates.policy == "never" and version is not None:
        return UpdateDecision("nothing", 'updates.policy = "never"')
    folder = None if version is None else released_folder(config.workspace, version)
    base = None if folder is None else Released.read(folder)
    # Names and order of the files say nothing.
    raw = sorted(digest_once(path) for path in raw_files(config).values())
    if base is not None and folder is not None and read_before(folder) == raw:
        return UpdateDecision("nothing", f"no new events since {version}")
    reason, due = must_be_full(config, version, folder, base), None
    if reason is None and base is not None:
        due = why_full(config, base)
    if config.updates.counts_only and reason is not None:
        return UpdateDecision(
            "nothing", f"{reason}, which takes recsys update without --counts-only"
        )
    if reason is not None or (due is not None and not config.updates.counts_only):
        return UpdateDecision("full", reason or due or "")
    return UpdateDecision("incremental", f"new events since {version}", folder)


def read_before(folder: Path) -> list[str]:
    """List the digests of the raw files that a released bundle was made from."""
    manifest = Manifest.read(folder / "build_features")
    inputs = {} if manifest is None else manifest.inputs
    return sorted(digest for name, digest in inputs.items() if name != RELEASED)


def must_be_full(
    config: RunConfig, version: str | None, folder: Path | None, base: Released | None
) -> str | None:
    """Return why the served bundle cannot be continued; None if it can."""
    if version is None:
        return "nothing is served yet"
    if base is None or folder is None:
        return f"what {version} was made from is not in this workspace"
    if base.until is None:
        return "the events have no times, so no event is known to be new"
    if config.sequence.trained_apart:
        return "members of the sequence model that are trained apart start anew"
    if changed := changed_settings(folder, config):
        return f"settings changed since the last full run: {', '.join(changed)}"
    if config.updates.policy == "full" and not config.updates.counts_only:
        return 'updates.policy = "full"'
    return None


def why_full(config: RunConfig, base: Released) -> str | None:
    """Return why a full run is due: by its age, or because the monitor wants one."""
    days = config.updates.full_every_days
    age = datetime.now(UTC) - datetime.fromisoformat(base.full_time)
    if days is not None and age >= timedelta(days=days):
        return f"the last full run is {age.days} days old, updates.full_every_days = {days}"
    try:
        found = read_result(DailyState(config.workspace).monitor)
    except ValueError:
        return None
    # A full run knows the days before its own.
    since = str(found.get("retrain_since") or "")
    if found.get("retrain") and since >= base.full_time[:10]:
        return f"the monitor wants a full run: {found.get('reason', 'an alarm')}"
    return None


def changed_settings(folder: Path, config: RunConfig) -> list[str]:
    """List the sections of the served models' configuration that have changed."""
    changed = []
    for stage in STAGES:
        before = read_settings(folder, stage.name)
        if before is None:
            continue
        fixed = [*REMOVED_KEYS]
        now = without_keys(stage.config_tables(config), fixed)
        before = without_keys(dict(before), fixed)
        ignored = (*IGNORED.get(stage.name, ()), "evaluation")
        changed += [
            name
            for name, value in now.items()
            if name in before and name not in ignored and differs(before[name], value)
        ]
    return sorted(set(changed))


def differs(before: object, now: object) -> bool:
    """Compare a section as it is written."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        # What no file names any more is no setting.
        drop = {"events", "partitions", "columns"}
        before = {key: value for key, value in before.items() if key not in drop}
        now = {key: value for key, value in now.items() if key not in drop}
    return digest_of_json(before) != digest_of_json(now)
