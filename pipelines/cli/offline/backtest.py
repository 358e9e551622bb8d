"""The command ``recsys backtest``: the past replayed."""

from __future__ import annotations

import json
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Column, Table

from pipelines.cli.options import AsJson, Open, Quiet, on_a_run
from pipelines.engine.console import log, out

if TYPE_CHECKING:
    from pipelines.config.run import RunConfig

Folder = Annotated[
    Path | None, typer.Option("--out", help="Folder of the replay; <workspace>/backtest without.")
]


@on_a_run
def backtest(
    config: RunConfig,
    folder: Folder = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    browse: Open = False,
) -> None:
    """Replay the log step by step and compare retraining policies in quality and cost.

    Models of a step are trained on the events before it and evaluated on the events in it, each
    with the user's history up to then. Policies full, incremental and never run side by side. A
    replay that was killed resumes; lists of peers in its folder are measured too. The settings are
    those of [backtest].

    [bold]Examples[/]

      recsys backtest --preset movielens_100k --workspace runs/movielens-100k

      recsys backtest --config shop.toml --set backtest.step_days=7 --set backtest.num_steps=12

      recsys backtest --config shop.toml --set engine=ray
    """
    from pipelines.backtest.run import FOLDER
    from pipelines.backtest.run import backtest as replay

    place = folder or config.workspace / FOLDER
    show_progress = not quiet and log.is_terminal

    def say(line: str) -> None:
        if not quiet:
            log.print(line, markup=False, soft_wrap=True)

    done = replay(config, place, say, show_progress=show_progress)
    if as_json:
        out.print_json(json.dumps(done.document))
        return
    _print(done.document)
    out.print(f"page: {done.page}", markup=False, soft_wrap=True)
    if browse:
        webbrowser.open(done.page.absolute().as_uri())


def _print(document: Mapping[str, Any]) -> None:
    from pipelines.pages.backtest.replayed import PEER, POLICY_NAMES, SERVED
    from pipelines.pages.wording import metric_label, model_label

    metrics = list(document["summary"][0]["metrics"])
    names = (*map(metric_label, metrics), "training, s")
    columns = (
        Column("policy", no_wrap=True),
        Column("list"),
        *(Column(one, justify="right") for one in names),
    )
    table = Table(*columns, box=box.SIMPLE_HEAD)
    for one in document["summary"]:
        if one["row"] == SERVED or one["policy"] in (PEER, "full"):
            values = [f"{one['metrics'][name]:.4f}" for name in metrics]
            table.add_row(
                POLICY_NAMES.get(one["policy"], one["policy"]),
                escape(model_label(one["row"])),
                *values,
                f"{one['fit_seconds']:,.1f}",
            )
    out.print(table)
    for line in document["words"]:
        out.print(line, markup=False, soft_wrap=True)
