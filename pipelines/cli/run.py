"""The commands that run stages: ``run``, ``stages``, ``demo``."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Column, Table

from pipelines.cli import tracking
from pipelines.cli.options import AsJson, Assignments, ConfigFile, Preset, Quiet, WorkspacePath
from pipelines.cli.scheduled import dry_run as planned
from pipelines.cli.scheduled import ingest
from pipelines.engine.console import log, out

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pipelines.config.run import RunConfig
    from pipelines.engine.history import Recording
    from pipelines.engine.runner import StageOutcome
    from pipelines.engine.stage import Stage
    from pipelines.presets.resolve import ConfigSources


def run(
    config: ConfigFile = None,
    preset: Preset = None,
    workspace: WorkspacePath = None,
    assignments: Assignments = None,
    until: Annotated[str | None, typer.Option(help="Last stage to run.")] = None,
    stage: Annotated[
        list[str] | None,
        typer.Option(
            help="Run only this stage (repeatable); beside others that it does not depend on."
        ),
    ] = None,
    force: Annotated[
        list[str] | None,
        typer.Option(help="Rerun this stage even if unchanged (repeatable)."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(help="Time of an automatic run, such as 90s, 10m or 1h (default 15m)."),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="Where it works: local, torchrun (several GPUs) or ray.")
    ] = None,
    quiet: Quiet = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would run and why; write nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run the stages from raw events to a released bundle.

    Preset auto, the default, looks at the data and the machine, prints its plan, serves a first
    bundle within a minute and better ones while its budget lasts. Other presets run as written.
    A stage whose inputs, settings and code are unchanged is skipped; a killed run resumes.

    [bold]Examples[/]

      recsys run --config shop.toml --budget 10m

      recsys run --preset movielens_100k

      recsys run --config shop.toml --set two_tower.embedding_dim=64

      recsys run -c shop.toml --until evaluate

      recsys run -c shop.toml --dry-run
    """
    from pipelines.engine.history import recorded
    from pipelines.presets.resolve import ConfigSources

    if config is None and preset is None:
        raise ValueError(
            "name a configuration: --config shop.toml for your own data, or --preset movielens_100k"
        )
    sources = ConfigSources(
        path=config,
        preset=preset,
        assignments=assignments or [],
        values={
            **({"engine": engine} if engine else {}),
            **({"auto": {"budget": budget}} if budget else {}),
        },
        workspace=workspace,
    )
    stages = (stage or [], until, force or [])
    if dry_run:
        planned.dry_run(sources, stages, as_json=as_json)
        return
    if as_json:
        raise ValueError("--json prints the plan of --dry-run; a run has recsys status --json")
    with recorded(None, "run") as recording:
        run_recorded(recording, sources, stages, show_progress=not quiet)


def run_recorded(
    recording: Recording,
    sources: ConfigSources,
    stages: tuple[list[str], str | None, list[str]],
    *,
    show_progress: bool,
) -> None:
    """Run stages and note in the history what was run.

    Args:
        sources: Of the configuration.
        stages: Those to run alone, the last one, those to run though nothing changed.
    """
    from pipelines.cli.automatic import run_automatically
    from pipelines.engine.runner import pick_stages, run_stages
    from pipelines.presets import resolve as presets
    from pipelines.publishing.gate.judged import check_judges
    from pipelines.stages.list import STAGES

    only, until, force = stages
    begin = time.perf_counter()
    chosen = pick_stages(STAGES, only, until)
    pick_stages(STAGES, force, None)
    settings = sources.config()
    if "auto" in sources.values and not settings.auto.enabled:
        raise ValueError(
            f"--budget {settings.auto.budget} is for automatic runs; this preset's settings are "
            'fixed. Leave it out, or take preset = "auto"'
        )
    presets.check_places(settings)
    check_judges(settings.release.gate, settings.workspace)
    recording.at(settings.workspace)
    reads_raw = any(one.name == "build_features" for one in chosen)
    settings = with_data(settings, recording) if reads_raw else presets.with_dataset(settings)
    with tracking.tracked(settings) as recorder:
        run_them = partial(
            run_stages,
            force=force,
            show_progress=show_progress,
            recorder=recorder,
            finished=tracking.report_stage,
            side_by_side=bool(only),
        )
        if settings.auto.enabled:
            outcomes = run_automatically(sources, settings, chosen, run_them, begin)
        else:
            outcomes = run_them(chosen, settings)
    note_run(recording, outcomes)
    report_run(outcomes, settings.workspace, time.perf_counter() - begin)


def note_run(recording: Recording, outcomes: Sequence[StageOutcome]) -> None:
    """Note which stages were run, and that nothing was to do where none was."""
    ran = [outcome.stage for outcome in outcomes if not outcome.skipped]
    recording.details["stages"] = ran
    if ran:
        recording.reasons.append(f"{len(ran)} of {len(outcomes)} stages run: {', '.join(ran)}")
    else:
        recording.outcome = "nothing to do"
        recording.reasons.append("data, settings and code are those of the last run")


def with_data(config: RunConfig, recording: Recording) -> RunConfig:
    """Bring in what has arrived, and point the configuration at it."""
    from pipelines.inputs.forgotten import with_forgotten
    from pipelines.presets import resolve as presets

    config = with_forgotten(config)
    ingest.bring_in(config, recording)
    return presets.with_online_events(presets.with_dataset(config))


def report_run(outcomes: Sequence[StageOutcome], workspace: Path, seconds: float) -> None:
    """Print what was run and where its report lies."""
    from pipelines.stages.report import report_path

    skipped = sum(outcome.skipped for outcome in outcomes)
    log.print(
        f"{len(outcomes) - skipped} stages run, {skipped} skipped, {seconds:.1f} s; artefacts in "
        f"{workspace}",
        soft_wrap=True,
    )
    path = report_path(workspace)
    if path.exists() and any(outcome.stage == "report" for outcome in outcomes):
        log.print(f"report: {path}", markup=False, soft_wrap=True)


def stages(
    markdown: Annotated[bool, typer.Option("--markdown", help="As the README's table.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the stages in the order they run.

    [bold]Example[/] recsys stages
    """
    from pipelines.stages.list import STAGES

    if as_json:
        typer.echo(json.dumps([{"name": one.name, "reads": one.reads} for one in STAGES]))
    elif markdown:
        typer.echo(stage_markdown(STAGES))
    else:
        out.print(stage_table(STAGES))


def stage_cells(one: Stage) -> tuple[str, str, str, str]:
    """Return the cells of a stage's row in either table."""
    return one.name, one.description, ", ".join(one.reads) or "raw files", one.writes


def stage_markdown(all_stages: list[Stage]) -> str:
    """Lay the stages out as a Markdown table, each linked to its file."""
    lines = ["| stage | what | reads | writes |", "| --- | --- | --- | --- |"]
    for one in all_stages:
        name, *others = stage_cells(one)
        lines.append(" | ".join([f"| [`{name}`](pipelines/stages/{name}.py)", *others]) + " |")
    return "\n".join(lines)


def stage_table(all_stages: list[Stage]) -> Table:
    """Lay the stages out as a table: name, what it does, what it reads and writes."""
    columns = (Column("stage", no_wrap=True), "what", "reads", "writes")
    table = Table(*columns, box=box.SIMPLE_HEAD)
    for one in all_stages:
        table.add_row(*stage_cells(one))
    return table


def demo(
    workspace: WorkspacePath = None,
    quiet: Quiet = False,
) -> None:
    """Turn MovieLens-100K from raw files into metrics, recommendations and a bundle to serve.

    [bold]Example[/] recsys demo
    """
    from pipelines.cli.demo import run_demo

    run_demo(workspace, show_progress=not quiet, finished=tracking.report_stage)
