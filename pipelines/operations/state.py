"""Bundles of a workspace, and aliases moved by hand with a line in its history of commands."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from pipelines.config.operation import TrackingConfig
from pipelines.config.removed import removal
from pipelines.config.toml import validate
from pipelines.engine.decisions import CHAMPION, Decision, history
from pipelines.engine.history import recorded
from pipelines.tracking.outbox import Outbox, open_outbox
from serving.bundle.manifest import bundle_directory, read_manifest


def bundles_of(workspace: Path) -> Path:
    """Return the folder of a workspace's bundles; by default next to its artefacts."""
    try:
        table = tomllib.loads((workspace / "config.toml").read_text(encoding="utf-8"))
        named = table.get("release", {}).get("bundles")
    except (OSError, ValueError, AttributeError):
        named = None
    return Path(named) if named else workspace / "bundles"


class Moved(NamedTuple):
    """A moved alias, and the outbox with the registry's part of it."""

    change: Decision
    config: TrackingConfig
    outbox: Outbox


def read_tracking(workspace: Path) -> TrackingConfig:
    """Read the tracking configuration of a workspace's last run; the defaults before one."""
    path = workspace / "config.toml"
    table = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    # A workspace of an earlier version has keys that were removed.
    section = {
        key: value
        for key, value in table.get("tracking", {}).items()
        if removal(f"tracking.{key}") is None
    }
    return validate(TrackingConfig, section, str(path))


def move_alias(
    command: str, bundles: Path, move: Callable[..., Decision], workspace: Path | None = None
) -> Moved:
    """Promote or roll back, and note it in the workspace's history, done or failed.

    Args:
        workspace: By default the folder above the bundles.
    """
    workspace = workspace or bundles.absolute().parent
    config, outbox = read_tracking(workspace), open_outbox(workspace)
    # A folder that no run made, as on a machine that only serves, has no history of commands.
    made = workspace if (workspace / "config.toml").exists() else None
    with recorded(made, command) as recording:
        change = move(bundles)
        outbox.enter_change(config, bundles, change)
        recording.details[CHAMPION] = change.version
    return Moved(change, config, outbox)


def served_until(bundles: Path) -> Mapping[str, datetime]:
    """Return until when each former champion was served last."""
    found: dict[str, datetime] = {}
    serving: str | None = None
    for change in history(bundles):
        if change.alias != CHAMPION:
            continue
        if serving is not None:
            found[serving] = datetime.fromisoformat(change.time)
        serving = change.version
    return found


def parents(bundles: Path, versions: Mapping[str, object]) -> dict[str, str]:
    """Map each delta to the bundle that it was appended to."""
    found = {}
    for version in versions:
        with suppress(ValueError, OSError):
            parent = read_manifest(bundle_directory(bundles, version))[0].parent
            if parent is not None:
                found[version] = parent.version
    return found
