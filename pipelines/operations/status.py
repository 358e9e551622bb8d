"""Status of a workspace: commands, served bundle, late inputs, free disk."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pipelines.engine.artifacts import MANIFEST
from pipelines.engine.decisions import history, read_challenger
from pipelines.engine.history import RUNNING, read_history, read_result
from pipelines.engine.memory import GIB
from pipelines.engine.workspace import DailyState
from pipelines.operations.collect import ADAPTER, folder_size, linked, written_at
from pipelines.operations.state import bundles_of
from pipelines.partitions.manifest import PartitionsManifest, parse_end
from pipelines.publishing.promotion import served_version
from pipelines.publishing.released import Released, released_folder
from pipelines.tracking.outbox import open_outbox
from recsys.data.durable import shared
from serving.bundle.manifest import CURRENT, bundle_directory
from serving.bundle.published import ADAPTERS

DAY = timedelta(days=1)
LATE = 1.5 * DAY
"""A partition is late when this much time has passed since the newest one ended: one day for the
day itself, the rest for it to arrive."""
MONITORED = ("time", "day", "alarm", "alarms", "retrain", "reason")


@dataclass(kw_only=True)
class Status:
    """Status of a workspace; times are ISO 8601, UTC."""

    workspace: str
    time: str
    problems: list[str] = field(default_factory=list)
    served: dict[str, Any] = field(default_factory=dict)
    commands: dict[str, dict[str, Any]] = field(default_factory=dict)
    running: list[dict[str, Any]] = field(default_factory=list)
    partitions: dict[str, Any] = field(default_factory=dict)
    monitor: dict[str, Any] = field(default_factory=dict)
    waiting_records: int = 0
    """Tracked runs that were not sent yet."""
    disk: dict[str, int] = field(default_factory=dict)


def read_status(workspace: Path, *, max_bundle_days: float, now: datetime | None = None) -> Status:
    """Look at a workspace; writes nothing."""
    now = now or datetime.now(UTC)
    found = Status(workspace=str(workspace.absolute()), time=now.isoformat(timespec="seconds"))
    look_at_served(found, workspace, now, max_bundle_days)
    look_at_commands(found, workspace)
    look_at_inputs(found, workspace, now)
    look_at_space(found, workspace, now)
    return found


def look_at_served(found: Status, workspace: Path, now: datetime, max_days: float) -> None:
    """Look at champion, challenger and adapters."""
    bundles = bundles_of(workspace)
    version = served_version(bundles)
    if version is None or not (bundles / CURRENT / MANIFEST).is_file():
        what = "no bundle was released" if version is None else f"bundle {version} is missing"
        found.problems.append(f"nothing is served from {bundles}: {what}")
        return
    released = written_at(bundle_directory(bundles, version), MANIFEST)
    age = (now - released) / DAY
    since = [one.time for one in history(bundles) if one.version == version]
    made = Released.read(released_folder(workspace, version))
    until = None if made is None else made.until
    found.served = {
        "champion": version,
        "since": since[-1] if since else None,
        "released": released.isoformat(timespec="seconds"),
        "age_days": round(age, 2),
        "trained_until": None if until is None else datetime.fromtimestamp(until, UTC).isoformat(),
        "challenger": read_challenger(bundles),
        "adapters": {
            folder.name.removeprefix("domain-"): linked(folder, ADAPTER).get(CURRENT)
            for folder in sorted((bundles / ADAPTERS).glob("domain-*"))
        },
        "bundles": str(bundles),
    }
    if age > max_days:
        found.problems.append(
            f"champion {version} was released {age:.1f} days ago (more than {max_days:g})"
        )


def look_at_commands(found: Status, workspace: Path) -> None:
    """Look at what ran last, and what runs."""
    found.commands = {one.command: {"last": asdict(one)} for one in read_history(workspace)}
    for name, command in found.commands.items():
        last = command["last"]
        if last["outcome"] == "failed":
            why = "".join(f": {reason}" for reason in last["reasons"][:1])
            found.problems.append(
                f"recsys {name} failed at {last['time']} with exit code {last['exit_code']}{why}"
            )
    for path in sorted((workspace / RUNNING).glob("*")):
        with suppress(OSError, ValueError, KeyError):
            run = json.loads(path.read_text(encoding="utf-8"))
            with shared(path) as ended:
                if ended:
                    found.problems.append(f"recsys {run['command']} of {run['time']} was killed")
                else:
                    found.running.append({"command": run["command"], "since": run["time"]})


def look_at_inputs(found: Status, workspace: Path, now: datetime) -> None:
    """Look at late, missing and unusable partitions, and at what the monitor found last."""
    try:
        manifest = PartitionsManifest.read(workspace)
    except ValueError as error:
        manifest = None
        found.problems.append(str(error))
    if manifest is not None and manifest.newest is not None:
        aside = {key: one.reason for key, one in manifest.set_aside.items()}
        found.partitions = {
            "newest": manifest.newest,
            "count": len(manifest.partitions),
            "missing": manifest.missing,
            "set_aside": aside,
        }
        if now - parse_end(manifest.newest) > LATE:
            found.problems.append(f"partitions: none since {manifest.newest}")
        is_old = manifest.is_behind_watermark
        if missing := [key for key in manifest.missing if not is_old(key)]:
            found.problems.append(f"partitions missing: {', '.join(missing)}")
        found.problems += [
            f"partition {key} was set aside: {why}" for key, why in aside.items() if not is_old(key)
        ]
    path = DailyState(workspace).monitor
    try:
        document = read_result(path)
        found.monitor = {name: document[name] for name in MONITORED if document}
    except (ValueError, KeyError) as error:
        found.problems.append(f"{path} cannot be read ({error}); run recsys monitor")
        return
    if document and document["alarm"]:
        alarms = ", ".join(document["alarms"])
        found.problems.append(f"the monitor raised {alarms} for {document['day']}")


def look_at_space(found: Status, workspace: Path, now: datetime) -> None:
    """Look at tracking records that wait for their server, and at the room for the next run."""
    waiting = open_outbox(workspace).waiting()
    found.waiting_records = len(waiting)
    written = (datetime.fromtimestamp(path.stat().st_mtime, UTC) for path in waiting)
    oldest = min(written, default=now)
    if now - oldest > DAY:
        found.problems.append(
            f"{len(waiting)} tracked runs wait since {oldest:%Y-%m-%d %H:%M}: "
            "recsys registry send says why"
        )
    # A run writes that much before it removes the old artefacts.
    artefacts = sum(folder_size(path.parent) for path in workspace.glob(f"*/{MANIFEST}"))
    free = shutil.disk_usage(workspace).free
    found.disk = {"artefacts": artefacts, "free": free}
    if free < max(GIB, artefacts):
        found.problems.append(
            f"disk: {free / GIB:.1f} GiB free; a run writes up to {artefacts / GIB:.1f} GiB before "
            "it removes the old artefacts (recsys gc makes room)"
        )
