"""The commands ``recsys release``: what was decided on each bundle, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Column, Table

from pipelines.cli import tracking
from pipelines.cli.options import DEMO
from pipelines.engine.console import log, out

if TYPE_CHECKING:
    from pipelines.publishing.decisions import Written

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
app.command()(tracking.promote)
app.command()(tracking.rollback)

Folder = Annotated[
    Path, typer.Option("--bundles", "-b", help="Folder of the bundles, or the run's workspace.")
]
Version = Annotated[
    str | None, typer.Argument(help="Version of a bundle; the latest decision by default.")
]
STATES = {"signed": "signed", "unsigned": "unsigned", "not verified": "signed, no key to verify"}


def bundles_in(path: Path) -> Path:
    """Take a folder of bundles, or that of a workspace.

    Raises:
        ValueError: There is no such folder.
    """
    from pipelines.operations.places import bundles_of

    for folder in (path, bundles_of(path), path / "bundles"):
        if (folder / "aliases.jsonl").exists() or (folder / "decisions").is_dir():
            return folder
    raise ValueError(
        f"nothing was released or refused in {path}; name a workspace or its folder of bundles "
        "with --bundles"
    )


def decisions_in(bundles: Path) -> tuple[list[Written], list[str]]:
    """Read and verify the decisions; say where no key verifies them."""
    from pipelines.engine.signing import KEY, signing_key
    from pipelines.publishing.decisions import read_decisions

    key = signing_key()
    found, faults = read_decisions(bundles, key)
    if key is None and found:
        log.print(f"note: {KEY} is not set, so no signature is verified", style="dim")
    return found, faults


def report_faults(faults: list[str]) -> None:
    """Print altered and missing decisions, and end with code 3 if there are any."""
    for fault in faults:
        log.print(fault, style="red", markup=False, soft_wrap=True)
    if faults:
        raise typer.Exit(3)


@app.command()
def history(bundles: Folder = DEMO / "bundles") -> None:
    """List every decision: what was released, refused, promoted, rolled back.

    Decisions are verified; one that was altered or taken away ends the command with code 3.

    [bold]Example[/] recsys release history --bundles runs/shop
    """
    found, faults = decisions_in(bundles_in(bundles))
    columns = (Column("time", no_wrap=True), Column("version", no_wrap=True), "outcome", "why")
    table = Table(*columns, box=box.SIMPLE_HEAD)
    for one in found:
        decision = one.decision
        forced = " (forced)" if decision.forced else ""
        table.add_row(decision.time, decision.challenger, decision.outcome + forced, why_of(one))
    out.print(table)
    report_faults(faults)


def why_of(written: Written) -> str:
    """Say in a few words why."""
    decision = written.decision
    if failed := decision.failed:
        return ", ".join(one["name"] for one in failed)
    return decision.words[-1] if decision.words else ""


@app.command()
def explain(version: Version = None, bundles: Folder = DEMO / "bundles") -> None:
    """Say why a version was released or refused, and what to do next.

    [bold]Example[/] recsys release explain 3f2a9c01b7de --bundles runs/shop
    """
    folder = bundles_in(bundles)
    found, faults = decisions_in(folder)
    chosen = [one for one in found if version in (None, one.decision.challenger)]
    if not chosen:
        for fault in faults:
            log.print(fault, style="red", markup=False, soft_wrap=True)
        known = ", ".join(sorted({one.decision.challenger for one in found})) or "none"
        raise ValueError(
            f"there is no decision on {version!r} in {folder}; there are decisions on: {known}"
        )
    written = chosen[-1]
    for line in explained(written):
        out.print(line, markup=False, soft_wrap=True)
    report_faults(faults)


def explained(written: Written) -> list[str]:
    """Lay a decision out for an operator."""
    decision = written.decision
    forced = ", by force" if decision.forced else ""
    lines = [
        f"{decision.challenger}: {decision.outcome}{forced} at {decision.time}",
        f"champion before it: {decision.champion or 'none'}; "
        f"decision {written.path.name} ({STATES[written.state]})",
        "",
        *decision.words,
    ]
    if decision.power:
        found = decision.power.get("found_in_4_of_5_cases")
        if isinstance(found, float):
            lines.append(
                f"Power: the smallest difference in {decision.power['metric']} that "
                f"{decision.power['users']} users reliably show (4 times in 5) is "
                f"{abs(found):.1%}; smaller ones may go unseen."
            )
    if decision.outcome == "refused":
        lines += [
            "",
            f"The bundle itself lies in {written.path.parents[1] / 'refused'} until the next "
            "refusal. After the cause is repaired, run recsys run. To serve it all the same: "
            f"recsys release promote {decision.challenger} --force",
        ]
    passed = [one for one in decision.verdicts if one["passed"]]
    if passed:
        lines += ["", f"Passed ({len(passed)}): " + ", ".join(one["name"] for one in passed)]
    return lines
