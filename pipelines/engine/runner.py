"""Run stages in order: skip those whose artefact is what it would be again, resume a killed one."""

from __future__ import annotations

import difflib
import platform
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Protocol

from pipelines.config.removed import REMOVED_KEYS
from pipelines.config.run import RunConfig
from pipelines.config.toml import to_toml, without_keys
from pipelines.engine import launch
from pipelines.engine.artifacts import Manifest, RunLog, begin, commit, plain
from pipelines.engine.memory import returning_memory
from pipelines.engine.stage import Stage, StageContext
from pipelines.engine.workspace import Workspace
from recsys.data.durable import digest_once, write_durably

OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "not enough memory")
"""Words of torch's errors, on the CPU and on a GPU."""


class StageRecorder(Protocol):
    """Keeps each stage that runs as one tracked run (pipelines/tracking/outbox.py)."""

    def recording(self, planned: Manifest, artefact: Path) -> AbstractContextManager[RunLog]:
        """Track what happens inside, and what the stage then made; an error fails the run."""


@dataclass(frozen=True)
class StageOutcome:
    """Outcome of one stage in one run."""

    stage: str
    seconds: float
    manifest: Manifest
    skipped: bool = False
    peak_memory_bytes: int = 0

    def log_line(self) -> str:
        """One line: stage, rows in, rows out, seconds."""
        rows = f"{self.manifest.rows['in']:>11,} in {self.manifest.rows['out']:>11,} out"
        if self.skipped:
            return f"{self.stage:<18} {rows}   unchanged, skipped"
        if not any(self.manifest.rows.values()):
            rows = f"{'no rows':>30}"
        memory = f"{self.peak_memory_bytes / 2**20:,.0f} MiB" if self.peak_memory_bytes else ""
        return f"{self.stage:<18} {rows} {self.seconds:>9.1f} s  {memory}"


def pick_stages(stages: Sequence[Stage], only: Sequence[str], until: str | None) -> list[Stage]:
    """Choose the stages of a run by name; all of them without a choice."""
    names = [stage.name for stage in stages]
    for wanted in filter(None, [*only, until]):
        if wanted not in names:
            near = difflib.get_close_matches(wanted, names, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(f"no stage {wanted!r}; {hint}Stages: {', '.join(names)}")
    last = len(names) if until is None else names.index(until) + 1
    return [stage for stage in stages[:last] if not only or stage.name in only]


def plan(stage: Stage, config: RunConfig, workspace: Workspace) -> Manifest:
    """Build the manifest of a stage's next artefact, without rows and files."""
    inputs = {}
    for name, path in stage.raw_files(config).items():
        if not path.is_file():
            raise ValueError(f"{name}: there is no file {path.absolute()}")
        inputs[name] = digest_once(path)
    for name in stage.input_stages(config):
        found = workspace.manifest(name)
        if found is None:
            raise ValueError(
                f"stage {stage.name} reads the artefact of {name}, which is not in "
                f"{workspace.path.absolute()}; run that stage first (recsys run --until {name})"
            )
        inputs[name] = found.output
    tables, versions = stage.config_tables(config), stage.versions()
    return Manifest(
        stage=stage.name, inputs=inputs, config=tables, versions=versions, rows={}, files={}
    )


def build_context(
    stage: Stage, config: RunConfig, workspace: Workspace, planned: Manifest
) -> StageContext:
    """Build a stage's context, with its artefact as the output."""
    return StageContext(
        config=config,
        workspace=workspace,
        inputs={name: workspace.stage(name) for name in stage.input_stages(config)},
        output=workspace.stage(stage.name),
        checkpoints=workspace.checkpoints(stage.name, planned.making),
        making=planned.making,
    )


def reset_peak_memory() -> bool:
    """Make the kernel measure this process's peak memory from here on; False where it cannot."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak_memory_bytes() -> int:
    """Return the most memory this process held since the last reset."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        scale = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


@contextmanager
def naming_system_errors(stage: Stage) -> Iterator[None]:
    """Raise what disk or memory refused as OSError or MemoryError, whichever library it was.

    Polars and safetensors have error types of their own, with the system's words inside; torch
    reports a lack of memory as a RuntimeError.
    """
    try:
        yield
    except Exception as error:
        words = str(error).lower()
        is_system = isinstance(error, OSError)
        if is_system and error.filename is not None:  # type: ignore[attr-defined]
            raise
        if is_system or "os error" in words or "no space left" in words:
            raise OSError(f"in stage {stage.name}: {error}") from error
        if not isinstance(error, MemoryError) and all(one not in words for one in OUT_OF_MEMORY):
            raise
        found = str(error).splitlines()[0] if words else "an array did not fit"
        raise MemoryError(
            f"out of memory in stage {stage.name}: {found}. The stages before it are done; give "
            "the process more memory or the stage smaller batches, and run again"
        ) from error


def run_stage(
    stage: Stage,
    config: RunConfig,
    workspace: Workspace,
    *,
    force: bool = False,
    show_progress: bool = False,
    recorder: StageRecorder | None = None,
    alone: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> StageOutcome:
    """Bring one stage's artefact up to date; the caller holds what it reads."""
    planned = plan(stage, config, workspace)
    context = build_context(stage, config, workspace, planned)
    context = replace(context, forced=force, show_progress=show_progress)

    def unchanged() -> StageOutcome | None:
        found = workspace.manifest(stage.name)
        if found and not force and found.making == planned.making and stage.outputs_exist(context):
            return StageOutcome(stage.name, 0.0, found, skipped=True)
        return None

    if (skipped := unchanged()) is not None:
        return skipped
    with alone():
        # Another process may have made it since.
        return unchanged() or make(stage, planned, context, force=force, recorder=recorder)


def make(
    stage: Stage,
    planned: Manifest,
    context: StageContext,
    *,
    force: bool,
    recorder: StageRecorder | None,
) -> StageOutcome:
    """Make a stage's artefact, resuming from the checkpoints of a killed run."""
    workspace, final = context.workspace, context.output
    workspace.keep_only_checkpoints(stage.name, None if force else planned.making)
    measured = reset_peak_memory()
    started, started_at = time.perf_counter(), datetime.now(UTC)
    recording = nullcontext(RunLog()) if recorder is None else recorder.recording(planned, final)
    with recording as run, returning_memory():
        partial = begin(final)
        with naming_system_errors(stage):
            rows = launch.run_stage(stage, replace(context, output=partial, run=run))
        seconds, memory = time.perf_counter() - started, peak_memory_bytes() if measured else 0
        ran = {
            "seconds": round(seconds, 3),
            "host": platform.node(),
            "started": started_at.isoformat(timespec="seconds"),
            "peak_memory_bytes": memory,
        }
        manifest = commit(partial, final, manifest=replace(planned, rows=rows.counts()), run=ran)
    workspace.keep_only_checkpoints(stage.name, None)
    return StageOutcome(stage.name, seconds, manifest, peak_memory_bytes=memory)


def run_stages(
    stages: Sequence[Stage],
    config: RunConfig,
    *,
    force: Sequence[str] = (),
    show_progress: bool = False,
    recorder: StageRecorder | None = None,
    finished: Callable[[StageOutcome], None] = lambda _outcome: None,
    side_by_side: bool = False,
) -> list[StageOutcome]:
    """Run stages in order, alone in the workspace or next to other single stages."""
    workspace, outcomes = Workspace(config.workspace), []
    with workspace.shared_lock() if side_by_side else workspace.lock():
        settings = to_toml(without_keys(plain(config), [*REMOVED_KEYS]))
        write_durably(workspace.path / "config.toml", settings)
        for stage in stages:
            reads = stage.input_stages(config)
            with workspace.reading(reads, stage.name) if side_by_side else nullcontext():
                outcome = run_stage(
                    stage,
                    config,
                    workspace,
                    force=stage.name in force,
                    show_progress=show_progress,
                    recorder=recorder,
                    alone=partial(workspace.making, stage.name) if side_by_side else nullcontext,
                )
            finished(outcome)
            outcomes.append(outcome)
    return outcomes
