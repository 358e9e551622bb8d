"""Studies of a run on past events: ``backtest`` and ``tune``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from pipelines.cli.options import (
    AsJson,
    Assignments,
    Budget,
    Open,
    OptionalRun,
    Out,
    Preset,
    Quiet,
    run_config,
)
from pipelines.cli.output import open_page, print_json, print_lines, print_progress
from pipelines.engine.console import log

NUM_SHOWN = 5


def choose_progress(quiet: bool) -> Callable[[str], None]:
    """Return the printer of progress, or one that prints nothing."""
    return (lambda line: None) if quiet else print_progress


def backtest(
    run: OptionalRun = None,
    preset: Preset = None,
    assignments: Assignments = None,
    out: Out = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    browse: Open = False,
) -> None:
    """Replay the log step by step and compare retraining policies in quality and cost.

    Models of a step are trained on the events before it and evaluated on the events in it, each
    with the user's history up to then. Policies full, incremental and never run side by side. A
    replay that was killed resumes. The settings are those of [backtest]; the folder is
    <workspace>/backtest unless --out names another.

    [bold]Examples[/]

      recsys backtest runs/movielens-100k

      recsys backtest shop.toml --set backtest.step_days=7 --set backtest.num_steps=12
    """
    from pipelines.backtest.backtest import FOLDER
    from pipelines.backtest.backtest import backtest as replay

    config = run_config(run, preset, assignments)
    place = out or config.workspace / FOLDER
    done = replay(
        config, place, choose_progress(quiet), show_progress=not quiet and log.is_terminal
    )
    if as_json:
        print_json(done.document)
        return
    print_lines(*done.document["words"], f"page: {done.page}")
    if browse:
        open_page(done.page)


def tune(
    over: Annotated[
        list[str],
        typer.Option(
            "--over", metavar="KEY=VALUES", help="Vary a key: low..high, or a,b,c (repeatable)."
        ),
    ],
    run: OptionalRun = None,
    preset: Preset = None,
    assignments: Assignments = None,
    trials: Annotated[
        int, typer.Option(help="Trials in all; the first has the present settings.", min=2)
    ] = 20,
    budget: Budget = None,
    out: Out = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Try hyper-parameters, compare them on validation, and report what the best are worth.

    Each trial fits the models that the keys shape on train and is measured on validation; test is
    not looked at. Optuna proposes values from earlier trials. A call that was killed resumes, and
    more --trials continue a finished one. Trials are kept in <workspace>/tune unless --out names
    another folder.

    [bold]Examples[/]

      recsys tune shop.toml --over sequence_training.schedule.learning_rate=1e-4..1e-2

      recsys tune shop.toml --over sequence.embedding_dim=32,64,128 --budget 1h
    """
    from pipelines.config.operation import budget_seconds
    from pipelines.tuning.study import BEST
    from pipelines.tuning.study import tune as run_trials

    config = run_config(run, preset, assignments)
    place = out or config.workspace / "tune"
    seconds = None if budget is None else budget_seconds(budget)
    found = run_trials(
        config,
        over,
        place,
        choose_progress(quiet),
        num_trials=trials,
        seconds=seconds,
        show_progress=not quiet and log.is_terminal,
    )
    if as_json:
        print_json(found)
    else:
        print_lines(*describe_trials(found), f"settings: {place / BEST}")


def describe_trials(found: dict[str, Any]) -> list[str]:
    """Describe the best trials and whether the best one is better than the present settings."""
    from pipelines.tuning.space import assignments

    what = f"{found['metric']} of {found['row']} on validation"
    present, best, difference = found["present"]["metric"], found["best"], found["difference"]
    done = [one for one in found["trials"] if one["metric"] is not None]
    failed = len(found["trials"]) - len(done)
    lines = [f"{len(done)} trials{f', {failed} failed' if failed else ''}; {what}"]
    for one in sorted(done, key=lambda one: (-one["metric"], one["number"]))[:NUM_SHOWN]:
        values = " ".join(assignments(one["values"])) or "present settings"
        lines.append(f"  {one['metric']:.4f}  {values}")
    if difference is None:
        return [*lines, "nothing tried is better than the present settings: keep them"]
    interval = f"95% interval {difference['low']:+.4f} to {difference['high']:+.4f}"
    lines.append(
        f"best {best['metric']:.4f}, present settings {present:.4f}: "
        f"{100 * difference['relative']:+.1f}% ({interval}, {difference['num_queries']:,} queries)"
    )
    if difference["decision"] != "better":
        lines.append("that is not enough evidence to change them: the best of several is lucky too")
        return lines
    given = " ".join(f"--set '{assignment}'" for assignment in assignments(best["values"]))
    return [
        *lines,
        "the best of several is a little lucky, so expect less on later events",
        f"use it: recsys run RUN {given}, with the same RUN",
    ]
