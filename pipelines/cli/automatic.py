"""An automatic run on the terminal: the plan first, then its rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich import box
from rich.table import Column, Table

from pipelines.auto.run import (
    FEATURES,
    Automatic,
    Planned,
    lines_of,
    planned_for,
)
from pipelines.cli.demo import metric_table, served_model
from pipelines.config.run import RunConfig
from pipelines.engine.artifacts import read_json
from pipelines.engine.console import log
from pipelines.engine.runner import StageOutcome
from pipelines.engine.stage import Stage
from pipelines.engine.workspace import bundles_dir
from pipelines.inputs.tensors import released_order, split_kind
from pipelines.presets.resolve import ConfigSources
from pipelines.stages.list import STAGES
from serving.bundle.load import load_bundle
from serving.bundle.manifest import CURRENT

TRAIN_SEQUENCE = "train_sequence"
RunStages = Callable[[Sequence[Stage], RunConfig], list[StageOutcome]]


def plan_table(planned: Planned) -> Table:
    """Lay out what each round does, why, and what is left out."""
    columns = (
        Column("round", no_wrap=True),
        "what",
        "why",
        Column("seconds", justify="right", no_wrap=True),
    )
    table = Table(*columns, box=box.SIMPLE_HEAD, title="Plan", title_justify="left")
    for one in planned.plan.rounds:
        for place, part in enumerate(one.parts):
            what = f"{part.name}: {part.what}" if part.what else part.name
            table.add_row("" if place else one.name, what, part.why, f"{part.seconds:,.0f}")
        table.add_section()
    for place, part in enumerate(planned.plan.left_out):
        what = f"{part.name}: {part.what}" if part.what else part.name
        table.add_row("" if place else "left out", what, part.why, "", style="dim")
    return table


def show_plan(planned: Planned, budget: str) -> None:
    """Print the data, the machine, the decisions and the rounds."""
    for line in lines_of(planned, budget):
        log.print(line, markup=False, soft_wrap=True)
    log.print(plan_table(planned))


@contextmanager
def saying_what_is_served(config: RunConfig) -> Iterator[None]:
    """Say after an interruption which bundle goes on being served."""
    try:
        yield
    except KeyboardInterrupt:
        current = bundles_dir(config) / CURRENT
        served = f"{current.resolve()} is served" if current.exists() else "nothing is served yet"
        log.print(f"interrupted; {served}", markup=False, soft_wrap=True)
        raise


def run_automatically(
    sources: ConfigSources,
    config: RunConfig,
    chosen: Sequence[Stage],
    run_stages: RunStages,
    begin: float,
) -> list[StageOutcome]:
    """Run an automatic configuration.

    Args:
        sources: Of the configuration.
        config: What they give without a plan's choices, with its raw files.
        chosen: Stages to run. With all of them the rounds of the plan are run; else the chosen ones
            by the configuration of the last round.
        run_stages: Brings stages up to date.
        begin: When the command began, by ``time.perf_counter``.
    """
    automatic = Automatic(sources, config, begin, lambda line: log.print(line, soft_wrap=True))
    features = [stage for stage in chosen if stage.name == FEATURES]
    with saying_what_is_served(config):
        outcomes = run_stages(features, config) if features else []
        if len(features) == len(chosen):
            return outcomes
        planned = planned_for(sources, config, automatic.seconds_left)
        show_plan(planned, config.auto.budget)
        if len(chosen) < len(STAGES):
            planned.save(config, len(planned.plan.rounds) - 1)
            rest = [stage for stage in chosen if stage.name != FEATURES]
            return outcomes + run_stages(rest, automatic.config_of(planned.plan.rounds[-1]))
        training = [stage.name for stage in STAGES].index(TRAIN_SEQUENCE)
        outcomes += automatic.run(
            planned,
            lambda one: run_stages(STAGES[1:training], one),
            lambda one: run_stages(STAGES[training:], one),
        )
    show_outcome(config)
    return outcomes


def show_outcome(config: RunConfig) -> None:
    """Print what the models are worth on held-out events, and what to type next."""
    path = config.workspace / "evaluate" / "metrics.json"
    current = bundles_dir(config) / CURRENT
    if not path.exists() or not current.exists():
        return
    order = released_order(config.workspace / FEATURES)
    metrics = read_json(path)[order]["test"]
    if metrics:
        has_ranker = load_bundle(current).ranker is not None
        by_time = split_kind(config.workspace / FEATURES) == "global_time"
        what = "Events after a moment" if by_time else "Last event of each user"
        title = f"{what}, full catalogue (test)"
        served = served_model(metrics, has_ranker=has_ranker)
        log.print(metric_table(title, metrics, config.evaluation.primary_metric, served=served))
    else:
        log.print("nothing was measured, because no user has a held-out event")
    log.print(f"ask it:   recsys recommend --bundle {current} --user <id>", markup=False)
    log.print(f"serve it: recsys serve --bundles {current.parent}", markup=False)
