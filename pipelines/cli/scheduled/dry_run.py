"""``recsys run --dry-run``: what a run would do, why, and what it would take."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich import box
from rich.table import Column, Table

from pipelines.engine.console import out
from pipelines.engine.formats import duration, size

if TYPE_CHECKING:
    from pipelines.operations.dry_run import Dry, StagePlan
    from pipelines.presets.resolve import ConfigSources


def dry_run(
    sources: ConfigSources,
    stages: tuple[list[str], str | None, list[str]],
    *,
    as_json: bool,
) -> None:
    """Print what a run would do; writes nothing.

    Args:
        sources: Of the configuration.
        stages: Those to run alone, the last one, those to run though nothing changed.
    """
    from pipelines.engine.runner import pick_stages
    from pipelines.operations.dry_run import dry_run as plan_run
    from pipelines.operations.dry_run import with_known_files
    from pipelines.presets.resolve import saved_choices
    from pipelines.stages.list import STAGES

    only, until, force = stages
    chosen = pick_stages(STAGES, only, until)
    pick_stages(STAGES, force, None)
    settings = sources.latest()
    known, arriving = with_known_files(settings)
    if settings.auto.enabled:
        made = saved_choices(settings.workspace) is not None
        arriving.notes.append(
            "an automatic run: compared with the last round of its plan"
            if made
            else "an automatic run: its plan of rounds is made once the features are built"
        )
    found = plan_run(chosen, known, force=force, arriving=arriving)
    if as_json:
        out.print_json(json.dumps(document_of(found)))
    else:
        print_plan(found)


def document_of(found: Dry) -> dict[str, object]:
    """Write a plan as JSON."""
    return {
        "stages": [asdict(one) for one in found.stages],
        "seconds": round(found.seconds, 1),
        "without_estimate": found.unknown,
        "memory_bytes": found.memory_bytes,
        "growth": found.growth,
        "notes": list(found.notes),
    }


def print_plan(found: Dry) -> None:
    """Print what would run in a sentence, then the stages as a table."""
    for line in words_of(found):
        out.print(line, markup=False, soft_wrap=True)
    columns = (
        Column("stage", no_wrap=True),
        Column("runs", no_wrap=True),
        "why",
        Column("seconds", justify="right", no_wrap=True),
        Column("memory", justify="right", no_wrap=True),
    )
    table = Table(*columns, box=box.SIMPLE_HEAD)
    for one in found.stages:
        table.add_row(*cells_of(one), style="dim" if one.runs == "no" else "")
    out.print(table)


def words_of(found: Dry) -> list[str]:
    """Say what would run, how long it would take and how much memory."""
    from pipelines.engine.memory import free_memory

    running = found.running
    lines = [f"{len(running)} of {len(found.stages)} stages would run; nothing was written"]
    if running:
        unknown = found.unknown
        at_least = "at least " if unknown else "about "
        time = f"{at_least}{duration(found.seconds)}" if found.seconds else "unknown"
        memory = size(found.memory_bytes) if found.memory_bytes else "unknown"
        free = free_memory()
        lines.append(f"time: {time}; memory: {memory} of {size(free)} that are free")
        if unknown:
            lines.append(f"never run here, so not in these: {', '.join(unknown)}")
        if found.memory_bytes > free:
            lines.append("WARNING: that is more memory than is free")
    if found.growth is not None and round(found.growth, 2) != 1:
        lines.append(f"events: {found.growth:.2f} times those of the last run")
    if failing := [one.stage for one in found.stages if one.runs == "fails"]:
        lines.append(f"WARNING: would end with exit code 2 at {failing[0]}")
    return [*lines, *(f"note: {note}" for note in found.notes)]


def cells_of(one: StagePlan) -> tuple[str, str, str, str, str]:
    """Lay a stage's plan out as a row; times of stages that do not run are left out."""
    runs = one.runs in ("yes", "if changed")
    seconds = "unknown" if one.seconds is None else f"{one.seconds:,.1f}"
    memory = "unknown" if one.memory_bytes is None else f"{one.memory_bytes / 2**20:,.0f} MiB"
    return (
        one.stage,
        one.runs,
        "; ".join(one.why),
        seconds if runs else "",
        memory if runs else "",
    )
