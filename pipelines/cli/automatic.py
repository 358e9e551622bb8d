"""An automatic run on the terminal: the plan first, then its rounds."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.table import Table

from pipelines.auto.beside import RunStages
from pipelines.auto.rounds import FEATURES, Automatic, Planned, describe_plan, planned_for
from pipelines.auto.trials import further_rounds
from pipelines.auto.worth import named_parts
from pipelines.cli.output import make_table, print_lines
from pipelines.config.run import RunConfig
from pipelines.engine.console import log
from pipelines.engine.runner import StageOutcome
from pipelines.engine.stage import Stage
from pipelines.presets.resolve import ConfigSources
from pipelines.stages.list import STAGES


def plan_table(planned: Planned) -> Table:
    """Tabulate what each round does, why, and the parts left out."""
    plan, rows = planned.plan, []
    groups = [(one.name, one.parts) for one in plan.rounds] + [("left out", plan.left_out)]
    for name, parts in groups:
        for place, part in enumerate(parts):
            what = f"{part.name}: {part.what}" if part.what else part.name
            seconds = "" if name == "left out" else f"{part.seconds:,.0f}"
            rows.append(("" if place else name, what, part.why, seconds))
    return make_table(("round", "what", "why", ">seconds"), rows, title="Plan", fixed=("round",))


def run_automatically(
    sources: ConfigSources,
    config: RunConfig,
    chosen: Sequence[Stage],
    run_stages: RunStages,
    begin: float,
) -> list[StageOutcome]:
    """Run the rounds of a plan, or chosen stages by the configuration of its last round.

    Args:
        config: The sources' configuration without a plan's choices, with its raw files.
        begin: When the command began, by ``time.perf_counter``.
    """
    automatic = Automatic(sources, config, begin, lambda line: print_lines(line, note=True))
    features = [stage for stage in chosen if stage.name == FEATURES]
    outcomes = run_stages(features, config) if features else []
    if len(features) == len(chosen):
        return outcomes
    planned = planned_for(sources, config, automatic.seconds_left)
    print_lines(*describe_plan(planned, config.auto), note=True)
    log.print(plan_table(planned))
    if len(chosen) < len(STAGES):
        planned.save(config, len(planned.plan.rounds) - 1)
        rest = [stage for stage in chosen if stage.name != FEATURES]
        return outcomes + run_stages(rest, automatic.round_config(planned.plan.rounds[-1]))
    outcomes += automatic.run(planned, run_stages)
    outcomes += further_rounds(automatic, planned, run_stages)
    rows = named_parts(planned, automatic.round_config(planned.plan.rounds[-1]))
    log.print(make_table(("part", "what it brought"), rows, title="Parts", fixed=("part",)))
    took, budget = time.perf_counter() - begin, config.auto.seconds
    print_lines(f"stopped after {took:,.0f} of {budget:,.0f} s: {planned.stopped}", note=True)
    return outcomes
