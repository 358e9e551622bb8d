"""``recsys run --dry-run``: what a run would do, why, and what it would take."""

from __future__ import annotations

from dataclasses import asdict

from pipelines.cli.options import StageNames
from pipelines.cli.output import print_json, print_lines, print_table
from pipelines.engine.formats import duration, size
from pipelines.engine.memory import free_memory
from pipelines.engine.runner import pick_stages
from pipelines.operations.dry_run import RunPlan, StagePlan, dry_run, with_known_files
from pipelines.presets.resolve import ConfigSources, saved_choices
from pipelines.stages.list import STAGES


def print_plan(sources: ConfigSources, stages: StageNames, *, as_json: bool) -> None:
    """Print what a run would do, without writing anything."""
    only, until, force = stages
    chosen = pick_stages(STAGES, only, until)
    pick_stages(STAGES, force, None)
    settings = sources.latest()
    known, arriving = with_known_files(settings)
    if settings.auto.enabled:
        how = "its plan of rounds is made once the features are built"
        if saved_choices(settings.workspace) is not None:
            how = "compared with the last round of its plan"
        arriving.notes.append(f"an automatic run: {how}")
    found = dry_run(chosen, known, force=force, arriving=arriving)
    if as_json:
        document = {
            "stages": [asdict(one) for one in found.stages],
            "seconds": round(found.seconds, 1),
            "without_estimate": found.unknown,
            "memory_bytes": found.memory_bytes,
            "notes": list(found.notes),
        }
        print_json(document)
        return
    print_lines(*describe(found))
    columns = ("stage", "runs", "why", ">seconds", ">memory")
    print_table(columns, map(format_row, found.stages), fixed=("stage", "runs"))


def describe(found: RunPlan) -> list[str]:
    """Describe what would run, its time and its memory, in sentences."""
    running, unknown = found.running, found.unknown
    lines = [f"{len(running)} of {len(found.stages)} stages would run; nothing was written"]
    if running:
        about = "at least " if unknown else "about "
        time = f"{about}{duration(found.seconds)}" if found.seconds else "unknown"
        memory = size(found.memory_bytes) if found.memory_bytes else "unknown"
        free = free_memory()
        lines.append(f"time: {time}; memory: {memory} of {size(free)} that are free")
        if unknown:
            lines.append(f"never run here, so not in these: {', '.join(unknown)}")
        if found.memory_bytes > free:
            lines.append("WARNING: that is more memory than is free")
    if failing := [one.stage for one in found.stages if one.runs == "fails"]:
        lines.append(f"WARNING: would end with exit code 2 at {failing[0]}")
    return [*lines, *(f"note: {note}" for note in found.notes)]


def format_row(one: StagePlan) -> tuple[str, str, str, str, str]:
    """Format a stage's row; times of stages that do not run are left out."""
    why = "; ".join(one.why)
    if one.runs not in ("yes", "if changed"):
        return one.stage, one.runs, why, "", ""
    seconds = "unknown" if one.seconds is None else f"{one.seconds:,.1f}"
    memory = "unknown" if one.memory_bytes is None else f"{one.memory_bytes / 2**20:,.0f} MiB"
    return one.stage, one.runs, why, seconds, memory
