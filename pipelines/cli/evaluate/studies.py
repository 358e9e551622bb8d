"""Studies of a run on past events: ``backtest``, ``tune``, ``judge``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    Run,
    find_workspace,
    run_config,
)
from pipelines.cli.output import open_page, print_json, print_lines, print_progress, print_table
from pipelines.engine.console import log

NUM_SHOWN = 5


def say_nothing(_line: str) -> None:
    """Print no progress."""


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
    replay that was killed resumes; lists of peers in its folder are measured too. The settings are
    those of [backtest]; the folder is <workspace>/backtest unless --out names another.

    [bold]Examples[/]

      recsys backtest runs/movielens-100k

      recsys backtest shop.toml --set backtest.step_days=7 --set backtest.num_steps=12

      recsys backtest shop.toml --set engine=ray
    """
    from pipelines.backtest.run import FOLDER
    from pipelines.backtest.run import backtest as replay

    config = run_config(run, preset, assignments)
    place = out or config.workspace / FOLDER
    show_progress = not quiet and log.is_terminal
    say = say_nothing if quiet else print_progress
    done = replay(config, place, say, show_progress=show_progress)
    if as_json:
        print_json(done.document)
        return
    print_backtest(done.document)
    print_lines(f"page: {done.page}")
    if browse:
        open_page(done.page)


def print_backtest(document: Mapping[str, Any]) -> None:
    """Print the served list under each policy, and every model under policy full."""
    from pipelines.pages.backtest_numbers import PEER, POLICY_NAMES, SERVED
    from pipelines.pages.wording import metric_label, model_label

    metrics = list(document["summary"][0]["metrics"])
    rows = [
        (
            POLICY_NAMES.get(one["policy"], one["policy"]),
            model_label(one["row"]),
            *(f"{one['metrics'][name]:.4f}" for name in metrics),
            f"{one['fit_seconds']:,.1f}",
        )
        for one in document["summary"]
        if one["row"] == SERVED or one["policy"] in (PEER, "full")
    ]
    numbers = [f">{name}" for name in (*map(metric_label, metrics), "training, s")]
    print_table(("policy", "list", *numbers), rows, fixed=("policy",))
    print_lines(*document["words"])


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
    jobs: Annotated[int, typer.Option(help="Trials at a time on this machine.", min=1)] = 1,
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

      recsys tune shop.toml --over sequence.embedding_dim=32,64,128 --jobs 2 --budget 1h

      recsys tune shop.toml --over sequence.dropout=0.0..0.5 --set engine=ray
    """
    from pipelines.config.operation import budget_seconds
    from pipelines.tuning.run import BEST, Tuning
    from pipelines.tuning.run import tune as run_trials
    from pipelines.tuning.space import parse_space

    config = run_config(run, preset, assignments)
    place = out or config.workspace / "tune"
    seconds = None if budget is None else budget_seconds(budget)
    found = run_trials(
        config,
        parse_space(over),
        Tuning(num_trials=trials, seconds=seconds, jobs=jobs),
        place,
        say_nothing if quiet else print_progress,
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


def judge(
    run: Run,
    k: Annotated[int, typer.Option(help="Places of a list that are judged.", min=2)] = 10,
    users: Annotated[int, typer.Option(help="Users whose lists are judged.", min=2)] = 1_000,
    as_json: AsJson = False,
) -> None:
    """Judge a run's lists on validation by rubrics, and measure the judges.

    For each judge: its mean score of each model's lists, how it separates the served lists from
    planted bad ones (popular, duplicates, off_taste), how often it prefers the list that has the
    held-out event, what reversing and halving a list changes. A release gate takes only judges
    whose agreement is shown here (release.gate.judges).

    [bold]Example[/]

      recsys judge runs/movielens-100k
    """
    from pipelines.evaluation.judges import judge_lists

    document = judge_lists(find_workspace(run), k=k, num_users=users)
    if as_json:
        print_json(document)
    else:
        print_judges(document)


def print_judges(document: Mapping[str, Any]) -> None:
    """Print a table of the judges and one of their correlations."""
    judges = document["judges"]
    kinds = list(dict.fromkeys(kind for one in judges.values() for kind in one["separates"]))
    auc = (f"AUC {kind}" for kind in kinds)
    numbers = ("served", *auc, "agrees with clicks", "reversed", "halved")
    print_table(
        ("judge", *(f">{name}" for name in numbers), "gate"),
        judge_rows(document, kinds),
        title=f"{document['num_users']} users, {document['k']} places, lists of "
        f"{document['served']} on validation",
    )
    related = document["correlation"]
    rows = [(name, *(_number(related[name].get(one)) for one in related)) for name in related]
    print_table(("correlation", *related), rows)


def judge_rows(document: Mapping[str, Any], kinds: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """List the row of each judge."""
    for name, one in document["judges"].items():
        clicks = one["clicks"]
        agreement = "no pairs"
        if clicks is not None:
            agreement = f"{clicks['mean']:.1%} ({clicks['low']:.1%} to {clicks['high']:.1%})"
        yield (
            name,
            _number(one["mean"].get(document["served"])),
            *(_number(one["separates"].get(kind)) for kind in kinds),
            agreement,
            _number(one["position_bias"]),
            _number(one["length_bias"]),
            "yes" if one["shown"] else "no",
        )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
