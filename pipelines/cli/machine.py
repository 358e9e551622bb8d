"""The commands ``doctor`` and ``plan``: check this machine, and what a run costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.cli.options import AsJson, Assignments, OptionalRun, Preset, config_sources
from pipelines.cli.output import print_json, print_lines, print_table
from pipelines.engine.formats import duration

if TYPE_CHECKING:
    from pipelines.auto.rounds import Planned
    from pipelines.config.run import RunConfig
    from pipelines.presets.resolve import ConfigSources
    from recsys.training.costs import Cost, Counts

COLUMNS = ("training", "on", ">memory", ">a step", ">steps", ">whole")


def doctor(
    as_json: AsJson = False,
    seconds: Annotated[float, typer.Option(min=1.0, help="Limit of each library's check.")] = 60.0,
) -> None:
    """Check that everything is installed and works, and print the commands that fix it.

    Exits with 3 if something that the platform needs is broken.

    [bold]Example[/] recsys doctor
    """
    from pipelines.doctor.doctor import fixes, run_checks

    results = run_checks(seconds)
    failed = [one.name for one in results if one.status == "fail"]
    if as_json:
        print_json({"ok": not failed, "checks": [one._asdict() for one in results]})
    else:
        columns = ("", "check", "found", "wanted")
        rows = ((one.status, one.name, one.found, one.wanted) for one in results)
        print_table(columns, rows, fixed=columns[:2])
        print_lines(*fixes(results))
    raise typer.Exit(3 if failed else 0)


def plan(
    name: OptionalRun = None,
    preset: Preset = None,
    assignments: Assignments = None,
    shop: Annotated[
        str | None,
        typer.Option(help="Sizes instead of the data's: items=N,users=N,events=N[,rows=N]."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Estimate what the trainings of a run cost on one and two H100.

    Memory, a step, all steps with the refit, and the measurement behind each. Without --shop the
    data is prepared first, which the run then skips. ``rows`` are those of tables of users'
    features. Exits with 3 if a training fits on no machine.

    [bold]Examples[/]

      recsys plan shop.toml

      recsys plan shop.toml --shop items=20e6,users=80e6,events=1e9
    """
    from pipelines.auto.estimates import estimate, parse_sizes
    from pipelines.cli.automatic import plan_table
    from pipelines.engine.console import log

    sources = config_sources(name, preset, assignments)
    config, sizes, planned = (
        counted(sources) if shop is None else (sources.latest(), parse_sizes(shop), None)
    )
    rows = estimate(config, sizes)
    if as_json:
        print_json({"shop": vars(sizes), "trainings": [one._asdict() for one in rows]})
    else:
        if planned is not None:
            log.print(plan_table(planned))
        title = f"{sizes.items:,} items, {sizes.users:,} users, {sizes.events:,} events"
        print_table(COLUMNS, map(cells, rows), title=title, fixed=COLUMNS[:2])
        pages = dict.fromkeys((one.on, one.training, one.source) for one in rows)
        print_lines(
            "Memory: tables, optimizer and a step, of each GPU (--json has parts). Whole: every "
            "pass and the refit; validation may end it before. Scaled from:",
            *(f"- {training} on {on}: {page}" for on, training, page in pages),
        )
    if {one.training for one in rows} - {one.training for one in rows if one.gib <= one.limit_gib}:
        raise typer.Exit(3)


def cells(cost: Cost) -> tuple[str, ...]:
    """Format a row of the plan's table."""
    fits = "of" if cost.gib <= cost.limit_gib else ">"
    return (
        cost.training,
        cost.on,
        f"{cost.gib:,.1f} {fits} {cost.limit_gib:,.0f} GiB",
        f"{cost.step_ms:,.1f} ms",
        f"{cost.num_steps:,}",
        duration(cost.seconds),
    )


def counted(sources: ConfigSources) -> tuple[RunConfig, Counts, Planned | None]:
    """Prepare a run's data and count it; an automatic run has the settings that it would choose."""
    from pipelines.auto.estimates import count_shop
    from pipelines.auto.rounds import FEATURES, planned_for
    from pipelines.cli.ingest import with_data
    from pipelines.cli.output import print_stage
    from pipelines.engine.history import recorded
    from pipelines.engine.runner import pick_stages, run_stages
    from pipelines.stages.list import STAGES

    settings, planned = sources.latest(), None
    with recorded(settings.workspace, "plan") as recording:
        settings = with_data(settings, recording)
        run_stages(pick_stages(STAGES, [FEATURES], None), settings, finished=print_stage)
        sizes = count_shop(settings.workspace / FEATURES)
    if settings.auto.enabled:
        planned = planned_for(sources, settings, lambda: settings.auto.seconds)
        last = planned.plan.rounds[-1]
        settings = sources.config(last.choices, last.deferred)
    return settings, sizes, planned
