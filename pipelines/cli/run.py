"""The commands ``run``, ``update`` and ``demo``."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.cli.ingest import with_data
from pipelines.cli.options import (
    Assignments,
    Budget,
    OptionalRun,
    Preset,
    Quiet,
    StageNames,
    Until,
    config_sources,
)
from pipelines.cli.output import STAGE_COLUMNS, print_lines, print_stage
from pipelines.cli.registry import tracked

if TYPE_CHECKING:
    from datetime import datetime

    from pipelines.config.run import RunConfig
    from pipelines.engine.history import Recording
    from pipelines.engine.runner import StageOutcome
    from pipelines.presets.resolve import ConfigSources
    from pipelines.update.policy import UpdateDecision


def run(
    name: OptionalRun = None,
    preset: Preset = None,
    assignments: Assignments = None,
    until: Annotated[str | None, typer.Option(help="Last stage to run.")] = None,
    stage: Annotated[
        list[str] | None, typer.Option(help="Run only this stage (repeatable).")
    ] = None,
    force: Annotated[
        list[str] | None, typer.Option(help="Rerun this stage even if unchanged (repeatable).")
    ] = None,
    budget: Budget = None,
    engine: Annotated[
        str | None, typer.Option(help="Where to work: local, or torchrun (several GPUs).")
    ] = None,
    quiet: Quiet = False,
    config: Annotated[Path | None, typer.Option(hidden=True, help="RUN, as it was named.")] = None,
) -> None:
    """Run the stages from raw events to a released bundle.

    Preset auto, the default, looks at the data and the machine, prints its plan, serves a first
    bundle within a minute and better ones until its budget (15m) is spent. Other presets run as
    written. A stage whose inputs, settings and code are unchanged is skipped; a killed run resumes.

    [bold]Examples[/]

      recsys run shop.toml --budget 10m

      recsys run --preset movielens_100k

      recsys run shop.toml --set two_tower.embedding_dim=64 --set workspace=runs/wide

      recsys run shop.toml --until evaluate
    """
    from pipelines.engine.history import recorded

    values = {"engine": engine} if engine else {}
    given = {**values, "auto": {"budget": budget}} if budget else values
    if name is not None and config is not None:
        raise ValueError(f"the run is named twice, {name} and --config {config}; name one")
    sources = config_sources(name or config, preset, assignments, given)
    stages = (stage or [], until, force or [])
    with recorded(None, "run") as recording:
        run_recorded(recording, sources, stages, show_progress=not quiet)


def run_recorded(
    recording: Recording, sources: ConfigSources, stages: StageNames, *, show_progress: bool
) -> None:
    """Run stages and note them in the history."""
    from pipelines.cli.automatic import run_automatically
    from pipelines.cli.results import print_results
    from pipelines.engine.runner import pick_stages, run_stages
    from pipelines.presets.resolve import check_places, with_dataset
    from pipelines.stages.list import STAGES
    from pipelines.stages.report import report_path

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
    check_places(settings)
    recording.at(settings.workspace)
    reads_raw = any(one.name == "build_features" for one in chosen)
    settings = with_data(settings, recording) if reads_raw else with_dataset(settings)
    print_lines(STAGE_COLUMNS, note=True, style="dim")
    with tracked(within_budget(settings)) as recorder:
        run_them = partial(
            run_stages,
            force=force,
            show_progress=show_progress,
            recorder=recorder,
            finished=print_stage,
            side_by_side=bool(only),
        )
        if settings.auto.enabled:
            outcomes = run_automatically(sources, settings, chosen, run_them, begin)
        else:
            outcomes = run_them(chosen, settings)
    ran = [outcome.stage for outcome in outcomes if not outcome.skipped]
    recording.details["stages"] = ran
    done = f"{len(ran)} of {len(outcomes)} stages run: {', '.join(ran)}"
    if not ran:
        recording.outcome = "nothing to do"
        done = "data, settings and code are those of the last run"
    recording.reasons.append(done)
    print_lines(
        f"{len(ran)} stages run, {len(outcomes) - len(ran)} skipped, "
        f"{time.perf_counter() - begin:.1f} s; artefacts in {settings.workspace}",
        note=True,
    )
    if len(chosen) == len(STAGES):
        print_results(settings)
    path = report_path(settings.workspace)
    if path.exists() and any(outcome.stage == "report" for outcome in outcomes):
        print_lines(f"report: {path}", note=True)


def within_budget(config: RunConfig) -> RunConfig:
    """Bound the sending of an automatic run's records by 4% of its budget; what is late waits."""
    if not config.auto.enabled:
        return config
    share = max(1.0, 0.04 * config.auto.seconds)
    sync_seconds = min(share, config.tracking.sync_seconds)
    return replace(config, tracking=replace(config.tracking, sync_seconds=sync_seconds))


def update(
    name: OptionalRun = None,
    preset: Preset = None,
    assignments: Assignments = None,
    counts_only: Annotated[
        bool, typer.Option("--counts-only", help="Keep trained weights; refresh counts, indexes.")
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Run every stage, whatever the policy.")
    ] = False,
    until: Until = None,
    quiet: Quiet = False,
) -> None:
    """Update the served bundle with the events that have arrived since.

    Partitions are ingested first. By the policy of [updates] the served models are continued on
    new events, judged on users held out of them, and released if the checks pass; or every stage
    runs. A full run comes by itself when the last one is too old, settings have changed, or the
    monitor wants one. Nothing new is no error.

    [bold]Examples[/]

      recsys update shop.toml

      recsys update shop.toml --counts-only
    """
    from pipelines.engine.history import recorded
    from pipelines.presets.resolve import check_places

    sources = config_sources(name, preset, assignments)
    settings = sources.latest()
    check_places(settings)
    if counts_only:
        settings = replace(settings, updates=replace(settings.updates, counts_only=True))
    command = "update --counts-only" if counts_only else "update"
    with recorded(settings.workspace, command) as recording:
        update_recorded(settings, sources, recording, full=full, until=until, quiet=quiet)


def update_recorded(
    settings: RunConfig,
    sources: ConfigSources,
    recording: Recording,
    *,
    full: bool,
    until: datetime | None,
    quiet: bool,
) -> None:
    """Ingest, decide, run, and note it in the history."""
    from pipelines.update.policy import UpdateDecision, decide

    settings = with_data(settings, recording, until)
    decision = UpdateDecision("full", "--full") if full else decide(settings)
    recording.reasons.append(f"{decision.kind}: {decision.reason}")
    recording.details["kind"] = decision.kind
    print_lines(f"{decision.kind}: {decision.reason}")
    if decision.kind == "nothing":
        recording.outcome = "nothing to do"
        return
    seconds: dict[str, float] = {}
    recording.details["stages"] = seconds

    def finished(outcome: StageOutcome) -> None:
        print_stage(outcome)
        if not outcome.skipped:
            seconds[outcome.stage] = round(outcome.seconds, 2)

    options = {"show_progress": not quiet, "finished": finished}
    outcomes = run_decided(settings, decision, sources, **options)
    num_run, spent = sum(not one.skipped for one in outcomes), sum(one.seconds for one in outcomes)
    if not num_run:
        recording.outcome = "nothing to do"
    print_lines(f"{num_run} stages run, {spent:.1f} s")


def run_decided(
    config: RunConfig, decision: UpdateDecision, sources: ConfigSources, **options: Any
) -> list[StageOutcome]:
    """Run an increment or every stage; the first full run of preset auto makes its plan."""
    from pipelines.cli.automatic import run_automatically
    from pipelines.engine.runner import run_stages
    from pipelines.presets.resolve import saved_choices
    from pipelines.stages.list import STAGES
    from pipelines.update.increment import run_update

    begin = time.perf_counter()
    with tracked(config) as recorder:
        if decision.base is not None:
            return run_update(config, decision.base, recorder=recorder, **options)

        def run_them(stages: Any, config: RunConfig) -> list[StageOutcome]:
            return run_stages(stages, config, recorder=recorder, **options)

        if config.auto.enabled and saved_choices(config.workspace) is None:
            return run_automatically(sources, config, STAGES, run_them, begin)
        return run_them(STAGES, config)


def demo(workspace: OptionalRun = None, quiet: Quiet = False) -> None:
    """Turn MovieLens-100K from raw files into metrics and a bundle to serve.

    [bold]Example[/] recsys demo
    """
    place = [] if workspace is None else [f"workspace={json.dumps(str(workspace))}"]
    run(preset="movielens_100k", assignments=place, quiet=quiet)
