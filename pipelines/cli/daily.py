"""Commands that a scheduler calls: ``monitor``, ``status``, ``gc``, ``parity``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.cli.options import (
    AsJson,
    Assignments,
    DryRun,
    Open,
    OptionalRun,
    Out,
    Preset,
    Run,
    Store,
    run_config,
)
from pipelines.cli.output import open_page, print_json, print_lines, print_table
from pipelines.cli.runs import find_bundles, find_workspace
from pipelines.engine.formats import size

if TYPE_CHECKING:
    from pipelines.operations.collect import CollectResult
    from pipelines.operations.status import Status
    from pipelines.parity.log import Log
    from pipelines.parity.run import ParityReport

MAX_NAMED = 8
MAX_CAUSES = 10


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

    Events, items, vectors and codes of the served bundle, features and served lists are compared
    with the days before. Thresholds are learned from the past, so a signal with too little of it
    says so. The settings are those of [monitoring].

    [bold]Examples[/]

      recsys monitor shop.toml

      recsys monitor runs/shop --as-of 2026-11-22 --open
    """
    from pipelines.engine.errors import AlarmError
    from pipelines.engine.history import recorded
    from pipelines.monitoring.run import moment_of
    from pipelines.monitoring.run import monitor as watch
    from pipelines.presets.resolve import with_online_events

    config = run_config(run, preset, assignments)
    with recorded(config.workspace, "monitor") as recording:
        found = watch(with_online_events(config), None if as_of is None else moment_of(as_of))
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
    """Print what ran, what is served, what is late, and disk and memory.

    Exits with 5 if something is late, failing or alarming, and with 0 if all is well.

    [bold]Example[/] recsys status runs/shop
    """
    from pipelines.operations.status import read_status

    found = read_status(find_workspace(run), max_bundle_days=max_bundle_days)
    if as_json:
        print_json(asdict(found))
    else:
        print_lines(*describe_status(found))
        if found.commands:
            fixed = ("command", "last run (UTC)", "outcome")
            columns = (*fixed, ">code", ">seconds", "last failure")
            print_table(columns, command_rows(found), fixed=fixed)
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
    lines += [f"running: recsys {one['command']} since {one['since']}" for one in found.running]
    if partitions := found.partitions:
        lines.append(
            f"partitions: {partitions['count']} up to {partitions['newest']}, "
            f"{len(partitions['missing'])} missing, {len(partitions['set_aside'])} set aside"
        )
    if found.monitor:
        state = "alarm" if found.monitor["alarm"] else "quiet"
        lines.append(f"monitor: {state} on {found.monitor['day']}")
    if found.outbox["waiting"]:
        lines.append(f"tracking: {found.outbox['waiting']} runs wait to be sent")
    disk, memory = found.disk, found.memory
    largest = f"; {memory['largest_stage']} took {size(memory['needed'])}"
    return [
        *lines,
        f"disk: {size(disk['artefacts'])} artefacts, {size(disk['bundles'])} bundles, "
        f"{size(disk['free'])} free",
        f"memory: {size(memory['free'])} free{largest if memory['needed'] else ''}",
    ]


def command_rows(found: Status) -> Iterator[tuple[str, ...]]:
    """List the last run of each command."""
    for name, command in sorted(found.commands.items()):
        last, failure = command["last"], command.get("last_failure")
        failed = f"{failure['time'][:16]} {' '.join(failure['reasons'])}" if failure else ""
        yield (
            name,
            last["time"][:16].replace("T", " "),
            last["outcome"],
            str(last["exit_code"]),
            f"{last['seconds']:,.1f}",
            failed[:160],
        )


def gc(
    run: Run,
    keep_days: Annotated[
        float, typer.Option(min=0, help="Keep what was released or served within these days.")
    ] = 14,
    keep: Annotated[int, typer.Option(min=1, help="Keep at least the newest n bundles.")] = 3,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Remove bundles, adapters, semantic IDs, training states and sent records not in use.

    Champion, challenger, the champion before and the bases of deltas are kept, and what a link
    points at or a running server or command has loaded, whatever its age.

    [bold]Examples[/]

      recsys gc runs/shop --dry-run

      recsys gc runs/shop --keep-days 30
    """
    from pipelines.engine.history import Recording, recorded
    from pipelines.operations.collect import collect

    workspace = find_workspace(run)
    bundles, _ = find_bundles(workspace)
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
    """Describe what was removed, what was kept and why; many of one kind are counted."""
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


def parity(
    run: Run,
    store: Store = None,
    export: Annotated[
        Path | None,
        typer.Option("--log", help="Folder of recsys data export --records, instead of a store."),
    ] = None,
    configs: Annotated[
        list[Path] | None,
        typer.Option(
            "--serving-config",
            envvar="RECSYS_SERVING_CONFIG",
            help="File of surfaces and rules in force (repeatable).",
        ),
    ] = None,
    sample: Annotated[int, typer.Option(min=1, help="Most lists that are computed.")] = 10_000,
    since: Annotated[
        str | None, typer.Option(help="Only lists of the last 90s, 30m, 6h or 7d.")
    ] = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Compute lists that were served once more, as of their moment, and compare every bit.

    Histories come from the events that had arrived by then, features by the batch definitions as
    well as by the serving path, lists from the same bundle. Each kind of difference is named with
    the code that computes it. Lists that cannot be recomputed are counted by reason. Exits with 3
    if a list differs.

    [bold]Examples[/]

      recsys parity runs/shop --store sqlite:runs/shop/online

      recsys parity runs/shop --since 1d --sample 1000 --json
    """
    from pipelines.engine.history import recorded
    from pipelines.parity.run import check_parity

    bundles = find_bundles(run)[0]
    place = bundles.absolute().parent
    with recorded(place, "parity") as recording:
        if store is not None and export is not None:
            raise ValueError("--store and --log are two places of the same lists; name one")
        logged = read_log(store or f"sqlite:{place / 'online'}", export, sample, since)
        if not logged.documents:
            raise ValueError(
                "the log holds no served list; serve some with a store (recsys serve --store), or "
                "name a longer time with --since"
            )

        def say(line: str) -> None:
            print_lines(line, note=True, style="dim")

        report = check_parity(logged, bundles, configurations=configs or [], say=say)
        written = report.write(place)
        if out is not None:
            out.write_text(report.to_json(), encoding="utf-8")
        causes = [one for one in report.differences if one.first][:MAX_CAUSES]
        recording.reasons.append(summarise_parity(report))
        recording.reasons += [f"{one.first:,} lists: {one.what} ({one.path})" for one in causes]
        numbers = ("requests", "recomputed", "equal")
        recording.details |= {name: getattr(report, name) for name in numbers}
        recording.details["skipped"] = dict(report.skipped)
        if as_json:
            typer.echo(report.to_json())
        else:
            print_lines(*describe_parity(report))
            print_lines(f"report: {written}", note=True)
        if report.differences:
            raise typer.Exit(3)


def read_log(url: str, export: Path | None, sample: int, since: str | None) -> Log:
    """Read served lists from a folder or a store."""
    import time

    from pipelines.inputs.opened_store import opened
    from pipelines.parity.log import log_of_export, log_of_store
    from serving.surfaces import duration_of

    span: Any = duration_of(since)
    is_span = isinstance(span, timedelta)
    since_ms = int(1_000 * (time.time() - span.total_seconds())) if is_span else 0
    if export is not None:
        return log_of_export(export, sample, since_ms)
    with opened(url) as store:
        return log_of_store(store, sample, since_ms)


def summarise_parity(report: ParityReport) -> str:
    """Summarise what was found in one sentence."""
    if not report.recomputed:
        return f"none of {report.requests:,} lists could be recomputed"
    # Rounded down: 100% is said of all alone.
    percent = int(10_000 * report.equal / report.recomputed) / 100
    return (
        f"{report.equal:,} of {report.recomputed:,} recomputed lists are equal to the last bit "
        f"({percent:g}%)"
    )


def describe_parity(report: ParityReport) -> list[str]:
    """Describe causes of differences with the code that computes them, and count the others."""
    from pipelines.parity.run import SKIPPED

    lines = [
        f"{report.requests:,} of {report.logged:,} logged lists, {report.seconds:.1f} s",
        summarise_parity(report),
        f"{report.with_features:,} of them with features and every source's part",
    ]
    if report.on_their_way:
        lines.append(f"{report.on_their_way:,} of them with events that were being committed")
    for reason, count in report.skipped.items():
        lines.append(f"{count:,} not recomputed: {SKIPPED.get(reason, reason)}")
    causes = [one for one in report.differences if one.first]
    for one in causes:
        lines += [
            f"- {one.what}: {one.first:,} lists, at most {one.largest:.6g} apart",
            f"  computed by {one.path}; example {one.example}",
        ]
    if others := len(report.differences) - len(causes):
        lines.append(f"- {others} kinds of difference that follow from these")
    return lines
