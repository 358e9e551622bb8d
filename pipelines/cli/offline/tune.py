"""The command ``recsys tune``: hyper-parameters by trials on validation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.cli.options import AsJson, Quiet, on_a_run
from pipelines.engine.console import log, out

if TYPE_CHECKING:
    from pipelines.config.run import RunConfig

Over = Annotated[
    list[str],
    typer.Option(
        "--over", metavar="KEY=VALUES", help="Vary a key: low..high, or a,b,c (repeatable)."
    ),
]
Trials = Annotated[
    int, typer.Option(help="Trials in all; the first has the present settings.", min=2)
]
Budget = Annotated[
    str | None, typer.Option(help="No trial begins after this time, such as 90s, 10m or 1h.")
]
Jobs = Annotated[int, typer.Option(help="Trials at a time on this machine.", min=1)]
Folder = Annotated[
    Path | None, typer.Option("--out", help="Folder of the trials; <workspace>/tune without.")
]
FOLDER = "tune"
NUM_SHOWN = 5


@on_a_run
def tune(
    config: RunConfig,
    over: Over,
    trials: Trials = 20,
    budget: Budget = None,
    jobs: Jobs = 1,
    folder: Folder = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Try hyper-parameters, compare them on validation, and say what the best are worth.

    Each trial fits what the keys shape (one model, or the blend where they shape several) on train
    and is measured on validation; test is not looked at. Optuna proposes values from earlier
    trials. A call that was killed goes on, and more --trials continue a finished one.

    [bold]Examples[/]

      recsys tune -c shop.toml --over sequence_training.schedule.learning_rate=1e-4..1e-2

      recsys tune -c shop.toml --over sequence.embedding_dim=32,64,128 --jobs 2 --budget 1h

      recsys tune -c shop.toml --over sequence.dropout=0.0..0.5 --set engine=ray
    """
    from pipelines.config.auto import budget_seconds
    from pipelines.tuning.run import BEST, Tuning
    from pipelines.tuning.run import tune as run_trials
    from pipelines.tuning.space import parse_space

    def say(line: str) -> None:
        if not quiet:
            log.print(line, markup=False, soft_wrap=True)

    place = folder or config.workspace / FOLDER
    seconds = None if budget is None else budget_seconds(budget)
    found = run_trials(
        config,
        parse_space(over),
        Tuning(num_trials=trials, seconds=seconds, jobs=jobs),
        place,
        say,
        show_progress=not quiet and log.is_terminal,
    )
    if as_json:
        out.print_json(json.dumps(found))
        return
    for line in lines_of(found):
        out.print(line, markup=False, soft_wrap=True)
    out.print(f"settings: {place / BEST}", markup=False, soft_wrap=True)


def lines_of(found: dict[str, Any]) -> list[str]:
    """Say in words what was found."""
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
    lines.append("the best of several is a little lucky, so expect less on later events")
    given = " ".join(f"--set '{assignment}'" for assignment in assignments(best["values"]))
    return [*lines, f"use it: recsys run {given}, with the same --config"]
