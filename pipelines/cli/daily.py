"""Commands that a scheduler calls: ``monitor``, ``status``, ``gc``."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.cli.options import (
    AsJson,
    Assignments,
    DryRun,
    Open,
    OptionalRun,
    Preset,
    Run,
    find_workspace,
    run_config,
)
from pipelines.cli.output import open_page, print_json, print_lines
from pipelines.engine.formats import size

if TYPE_CHECKING:
    from pipelines.operations.collect import CollectResult
    from pipelines.operations.status import Status

MAX_NAMED = 8


def monitor(
    run: OptionalRun = None,
    preset: Preset = None,
    assignments: Assignments = None,
    as_of: Annotated[
        str | None,
        typer.Option(
            "--as-of", metavar="TIME", help="Watch the days over by then; by default now."
        ),
    ] = None,
    as_json: AsJson = False,
    browse: Open = False,
) -> None:
    """Watch each day for drift, and each input for its age; exits with 5 if an alarm is raised.

    Events, items, users and served lists are compared with the days before. Thresholds are learned
    from the past, so a signal with too little of it says so. The settings are those of
    [monitoring].

    [bold]Examples[/]

      recsys monitor shop.toml

      recsys monitor runs/shop --as-of 2026-11-22 --open
    """
    from pipelines.engine.errors import AlarmError
    from pipelines.engine.history import recorded
    from pipelines.monitoring.monitor import monitor as watch
    from pipelines.monitoring.monitor import parse_moment
    from pipelines.presets.resolve import with_online_events

    config = run_config(run, preset, assignments)
    with recorded(config.workspace, "monitor") as recording:
        found = watch(with_online_events(config), None if as_of is None else parse_moment(as_of))
        document = found.document
        recording.details |= {
            name: document[name] for name in ("day", "alarms", "retrain", "measured_days")
        }
        if as_json:
            print_json(document)
        else:
            print_lines(*document["words"], f"page: {found.page}")
        if browse:
            open_page(found.page)
        if found.alarm:
            raise AlarmError(f"{document['day']}: alarm of {', '.join(document['alarms'])}")


def status(
    run: Run,
    max_bundle_days: Annotated[
        float, typer.Option(min=0, help="A champion released longer ago is late.")
    ] = 3,
    as_json: AsJson = False,
) -> None:
    """Print past commands, the served bundle, late inputs, and the free disk.

    Exits with 5 if something is late, failing or alarming, and with 0 if all is well.

    [bold]Example[/] recsys status runs/shop
    """
    from pipelines.operations.status import read_status

    found = read_status(find_workspace(run), max_bundle_days=max_bundle_days)
    if as_json:
        print_json(asdict(found))
    else:
        print_lines(*describe_status(found))
    raise typer.Exit(5 if found.problems else 0)


def describe_status(found: Status) -> list[str]:
    """Describe what matters, most important first."""
    lines = [f"PROBLEM: {problem}" for problem in found.problems] or ["all is well"]
    if served := found.served:
        until = f", trained until {served['trained_until'][:10]}" if served["trained_until"] else ""
        lines += [
            f"champion: {served['champion']}, released {served['age_days']:.1f} days ago{until}",
            f"challenger: {served['challenger'] or 'none'}",
        ]
        adapters = [f"{name} {one}" for name, one in served["adapters"].items() if one]
        if adapters:
            lines.append(f"adapters: {', '.join(adapters)}")
    for name, command in sorted(found.commands.items()):
        last = command["last"]
        lines.append(f"recsys {name}: {last['outcome']} at {last['time'][:16]}")
    lines += [f"running: recsys {one['command']} since {one['since']}" for one in found.running]
    if partitions := found.partitions:
        lines.append(
            f"partitions: {partitions['count']} up to {partitions['newest']}, "
            f"{len(partitions['missing'])} missing, {len(partitions['set_aside'])} set aside"
        )
    if found.monitor:
        state = "alarm" if found.monitor["alarm"] else "quiet"
        lines.append(f"monitor: {state} on {found.monitor['day']}")
    if found.waiting_records:
        lines.append(f"tracking: {found.waiting_records} runs wait to be sent")
    disk = found.disk
    return [*lines, f"disk: {size(disk['artefacts'])} artefacts, {size(disk['free'])} free"]


def gc(
    run: Run,
    keep_days: Annotated[
        float, typer.Option(min=0, help="Keep what was released or served within these days.")
    ] = 14,
    keep: Annotated[int, typer.Option(min=1, help="Keep at least the newest n bundles.")] = 3,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Remove bundles, adapters, training states and sent records not in use.

    Champion, challenger, the champion before and the bases of deltas are kept, and what a link
    points at or a running server or command has loaded, at any age.

    [bold]Examples[/]

      recsys gc runs/shop --dry-run

      recsys gc runs/shop --keep-days 30
    """
    from pipelines.engine.history import Recording, recorded
    from pipelines.operations.collect import collect
    from pipelines.operations.state import bundles_of

    workspace = find_workspace(run)
    bundles = bundles_of(workspace)
    history = nullcontext(Recording("gc")) if dry_run else recorded(workspace, "gc")
    with history as recording:
        found = collect(workspace, bundles, keep_days=keep_days, keep=keep, dry=dry_run)
        recording.details |= {
            "removed": [f"{one.kind} {one.name}" for one in found.removed],
            "bytes": found.num_bytes,
            "refused": found.refused,
        }
        recording.reasons += [f"{name} was left: {why}" for name, why in found.refused.items()]
        if not found.removed:
            recording.outcome = "nothing to do"
        if as_json:
            print_json({**asdict(found), "num_bytes": found.num_bytes})
        else:
            print_lines(*describe_collected(found, dry=dry_run))


def describe_collected(found: CollectResult, *, dry: bool) -> list[str]:
    """Describe removed and kept files with the reason; many of one kind are counted."""
    verb = "would be removed" if dry else "removed"
    lines = [f"{len(found.removed)} {verb}, {size(found.num_bytes)}"]
    lines += [f"bundle {name} was left: {why}" for name, why in found.refused.items()]
    lines += [f"note: {note}" for note in found.notes]
    alike: dict[tuple[str, str], list[str]] = {}
    for one in found.removed:
        alike.setdefault((one.kind, one.why), []).append(one.name)
    for (kind, why), names in alike.items():
        few = len(names) <= MAX_NAMED
        named = f"{kind} {', '.join(names)}" if few else f"{len(names)} of {kind}"
        lines.append(f"{'goes' if dry else 'gone'}  {named}: {why}")
    return [*lines, *(f"kept  bundle {version}: {why}" for version, why in found.kept.items())]
