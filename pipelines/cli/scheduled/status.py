"""The command ``recsys status``: the state of a workspace at a glance."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Column, Table

from pipelines.cli.options import DEMO, AsJson
from pipelines.cli.scheduled.gc import Workspace
from pipelines.engine.console import out
from pipelines.engine.formats import size

if TYPE_CHECKING:
    from pipelines.operations.status import Status


def status(
    workspace: Workspace = DEMO,
    max_bundle_days: Annotated[
        float, typer.Option(min=0, help="A champion released longer ago is late.")
    ] = 3,
    as_json: AsJson = False,
) -> None:
    """Print what ran, what is served, what is late, and disk and memory.

    Exits with 5 where something is late, failing or alarming, and with 0 where all is well.

    [bold]Example[/] recsys status --workspace runs/shop
    """
    from pipelines.operations.status import status_of

    if not workspace.is_dir():
        raise ValueError(f"no workspace {workspace}; name one with --workspace")
    found = status_of(workspace, max_bundle_days=max_bundle_days)
    if as_json:
        out.print_json(json.dumps(asdict(found)))
    else:
        for line in words_of(found):
            out.print(line, markup=False, soft_wrap=True)
        if found.commands:
            out.print(table_of(found))
    raise typer.Exit(5 if found.problems else 0)


def words_of(found: Status) -> list[str]:
    """Say what matters, most important first."""
    lines = [f"PROBLEM: {problem}" for problem in found.problems] or ["all is well"]
    if found.served:
        served = found.served
        until = f", trained until {served['trained_until'][:10]}" if served["trained_until"] else ""
        lines.append(
            f"champion: {served['champion']}, released {served['age_days']:.1f} days ago{until}"
        )
        lines.append(f"challenger: {served['challenger'] or 'none'}")
        adapters = [f"{name} {one}" for name, one in served["adapters"].items() if one]
        if adapters:
            lines.append(f"adapters: {', '.join(adapters)}")
    lines += [f"running: recsys {one['command']} since {one['since']}" for one in found.running]
    if found.partitions:
        partitions = found.partitions
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
    lines.append(
        f"disk: {size(disk['artefacts'])} artefacts, {size(disk['bundles'])} bundles, "
        f"{size(disk['free'])} free"
    )
    needed = (
        f"; {memory['largest_stage']} took {size(memory['needed'])}" if memory["needed"] else ""
    )
    lines.append(f"memory: {size(memory['free'])} free{needed}")
    return lines


def table_of(found: Status) -> Table:
    """Lay out the last run of each command."""
    columns = (
        Column("command", no_wrap=True),
        Column("last run (UTC)", no_wrap=True),
        Column("outcome", no_wrap=True),
        Column("code", justify="right", no_wrap=True),
        Column("seconds", justify="right", no_wrap=True),
        "last failure",
    )
    table = Table(*columns, box=box.SIMPLE_HEAD)
    for name, command in sorted(found.commands.items()):
        last, failure = command["last"], command.get("last_failure")
        failed = (
            "" if failure is None else f"{failure['time'][:16]} " + " ".join(failure["reasons"])
        )
        table.add_row(
            name,
            last["time"][:16].replace("T", " "),
            last["outcome"],
            str(last["exit_code"]),
            f"{last['seconds']:,.1f}",
            failed[:160],
        )
    return table
