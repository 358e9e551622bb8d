"""The command ``recsys update``: what a scheduler calls every day."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.cli.options import Assignments, ConfigFile, Preset, Quiet, WorkspacePath
from pipelines.cli.scheduled.ingest import Until, bring_in
from pipelines.cli.tracking import report_stage, tracked
from pipelines.engine.console import out

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipelines.config.run import RunConfig
    from pipelines.engine.history import Recording
    from pipelines.engine.runner import StageOutcome
    from pipelines.presets.resolve import ConfigSources
    from pipelines.update.policy import UpdateDecision

CountsOnly = Annotated[
    bool, typer.Option("--counts-only", help="Leave trained weights; recount and index anew.")
]
Full = Annotated[bool, typer.Option("--full", help="Run every stage, whatever the policy.")]


def update(
    config: ConfigFile = None,
    preset: Preset = None,
    workspace: WorkspacePath = None,
    assignments: Assignments = None,
    counts_only: CountsOnly = False,
    full: Full = False,
    until: Until = None,
    quiet: Quiet = False,
) -> None:
    """Bring what is served up to date with what has arrived since.

    Partitions are ingested first. By the policy of [updates] the served models are continued on
    new events (a replay buffer, a lower rate, new rows for new items), judged on users held out of
    them, and released if the checks pass; or every stage runs. A full run comes by itself when the
    last one is too old, settings have changed, or the monitor wants one. Nothing new is no error.

    [bold]Examples[/]

      recsys update --config shop.toml

      recsys update --config shop.toml --counts-only
    """
    from pipelines.engine.history import recorded
    from pipelines.presets import resolve as presets
    from pipelines.publishing.gate.judged import check_judges

    if config is None and preset is None:
        raise ValueError("name a run: --config shop.toml")
    sources = presets.ConfigSources(
        path=config, preset=preset, assignments=assignments or [], workspace=workspace
    )
    settings = sources.latest()
    presets.check_places(settings)
    check_judges(settings.release.gate, settings.workspace)
    if counts_only:
        settings = replace(settings, updates=replace(settings.updates, counts_only=True))
    name = "update --counts-only" if counts_only else "update"
    with recorded(settings.workspace, name) as recording:
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
    from pipelines.inputs.forgotten import with_forgotten
    from pipelines.presets import resolve as presets
    from pipelines.update.policy import UpdateDecision, decide

    settings = with_forgotten(settings)
    bring_in(settings, recording, until)
    settings = presets.with_online_events(presets.with_dataset(settings))
    decision = UpdateDecision("full", "--full") if full else decide(settings)
    recording.reasons.append(f"{decision.kind}: {decision.reason}")
    recording.details["kind"] = decision.kind
    out.print(f"{decision.kind}: {decision.reason}", markup=False, soft_wrap=True)
    if decision.kind == "nothing":
        recording.outcome = "nothing to do"
        return
    done = Noted(recording)
    outcomes = run_decided(settings, decision, sources, done.report, quiet=quiet)
    if all(outcome.skipped for outcome in outcomes):
        recording.outcome = "nothing to do"
    seconds = sum(outcome.seconds for outcome in outcomes)
    out.print(f"{sum(not one.skipped for one in outcomes)} stages run, {seconds:.1f} s")


class Noted:
    """Prints each stage as it ends, and notes its seconds in the history."""

    def __init__(self, recording: Recording) -> None:
        self._seconds: dict[str, float] = {}
        recording.details["stages"] = self._seconds

    def report(self, outcome: StageOutcome) -> None:
        """Print and note one."""
        report_stage(outcome)
        if not outcome.skipped:
            self._seconds[outcome.stage] = round(outcome.seconds, 2)


def run_decided(
    config: RunConfig,
    decision: UpdateDecision,
    sources: ConfigSources,
    finished: Callable[[StageOutcome], None],
    *,
    quiet: bool,
) -> list[StageOutcome]:
    """Run an increment or every stage; the first full run of preset auto makes its plan."""
    from pipelines.cli.automatic import run_automatically
    from pipelines.engine.runner import run_stages
    from pipelines.presets.resolve import saved_choices
    from pipelines.stages.list import STAGES
    from pipelines.update.run import run_update

    begin = time.perf_counter()
    with tracked(config) as recorder:
        run_them = partial(
            run_stages, show_progress=not quiet, recorder=recorder, finished=finished
        )
        if decision.base is not None:
            return run_update(
                config,
                decision.base,
                show_progress=not quiet,
                recorder=recorder,
                finished=finished,
            )
        if config.auto.enabled and saved_choices(config.workspace) is None:
            return run_automatically(sources, config, STAGES, run_them, begin)
        return run_them(STAGES, config)
