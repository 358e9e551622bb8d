"""``recsys experiments``: what the arms of a server's experiments have shown so far."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Column, Table

from pipelines.cli.options import AsJson
from pipelines.engine.console import log, out

if TYPE_CHECKING:
    from pipelines.experiments.analysis import AnalysisConfig, ExperimentResult, Shares
    from pipelines.experiments.collected import Collected


def experiments(
    store: Annotated[
        str | None, typer.Option(help="sqlite:FOLDER or redis://HOST:PORT/0, as of recsys serve.")
    ] = None,
    exported: Annotated[
        Path | None, typer.Option(help="Instead: a folder that recsys events export wrote.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="The server's serving.toml: arms and their weights."),
    ] = None,
    event: Annotated[str, typer.Option(help="Type of the events that are the outcome.")] = "click",
    metric: Annotated[
        str, typer.Option(help="per_user, per_list, or share (of users with such an event).")
    ] = "per_user",
    window: Annotated[
        str, typer.Option(help="Time after a user's first list that counts: 90s, 30m, 6h or 7d.")
    ] = "1d",
    html: Annotated[Path | None, typer.Option(help="Also write a page with charts.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare the arms of every experiment with its first, by a test that allows daily looks.

    Each user counts once, under the arm of their first list, when the window after it is over.
    Events count where they name a list that was served within it. Without --config arms are taken
    to have equal shares.

    [bold]Examples[/]

      recsys experiments --store sqlite:runs/shop/online --config serving.toml

      recsys experiments --exported runs/shop/online_events --event purchase --html arms.html
    """
    from pipelines.experiments.analysis import analyse
    from pipelines.experiments.wording import outcome_name

    settings, weights = _settings(metric, window), _weights(config)
    results = analyse(_collected(store, exported, event), settings, weights)
    outcome = outcome_name(settings.metric, event)
    if html is not None:
        if not results:
            raise ValueError("no list of an experiment was served, so there is no page to write")
        from pipelines.experiments.page import experiments_page
        from pipelines.pages.file import write_page

        write_page(experiments_page(results, settings, outcome), html)
    if as_json:
        out.print_json(json.dumps([_plain(result) for result in results]))
    else:
        _print(results, settings, outcome)
    if html is not None:
        log.print(f"page: {html}", markup=False, soft_wrap=True)


def _settings(metric: str, window: str) -> AnalysisConfig:
    from pipelines.experiments.analysis import METRICS, AnalysisConfig
    from serving.surfaces import duration_of

    if metric not in METRICS:
        raise ValueError(f"--metric {metric} is not known; choose one of {', '.join(METRICS)}")
    length = duration_of(window)
    if not isinstance(length, timedelta) or not length:
        raise ValueError(f"--window {window} must be longer than 0")
    return AnalysisConfig(metric=metric, window=length)


def _collected(store: str | None, exported: Path | None, event: str) -> Collected:
    from typing import get_args

    from pipelines.experiments.collected import from_export, from_store
    from serving.online.events import EventType

    if event not in (types := get_args(EventType)):
        raise ValueError(f"--event {event} is not known; choose one of {', '.join(types)}")
    if (store is None) == (exported is None):
        raise ValueError("name either --store sqlite:FOLDER (or redis://...) or --exported FOLDER")
    if store is not None:
        return from_store(store, event)
    assert exported is not None
    return from_export(exported, event)


def _weights(config: Path | None) -> Shares | None:
    if config is None:
        return None
    from serving.configuration.file import read_configuration

    return {
        one.name: {arm.name: arm.weight for arm in one.arms}
        for one in read_configuration(config).experiments
    }


def _plain(result: ExperimentResult) -> dict[str, object]:
    return {
        "name": result.name,
        "arms": [asdict(arm) for arm in result.arms],
        "ratio_p_value": result.ratio_p_value,
        "moved_users": result.moved_users,
    }


def _print(results: Sequence[ExperimentResult], settings: AnalysisConfig, outcome: str) -> None:
    from pipelines.experiments.wording import number, sentences

    if not results:
        out.print("No list of an experiment was served.")
    for result in results:
        table = Table(
            Column("arm", no_wrap=True),
            *(Column(name, justify="right") for name in ("share", "users", "that count", "lists")),
            *(Column(name, justify="right") for name in (outcome, "difference", "from", "to")),
            box=box.SIMPLE_HEAD,
            title=result.name,
            title_justify="left",
        )
        for arm in result.arms:
            share = "-" if arm.share is None else f"{arm.share:.1%}"
            counts = [f"{count:,}" for count in (arm.users, arm.settled, arm.lists)]
            found = [number(value, signed=True) for value in (arm.difference, arm.low, arm.high)]
            table.add_row(arm.name, share, *counts, number(arm.outcome), *found)
        out.print(table)
        if result.ratio_p_value is not None:
            out.print(f"Shares of arms: p = {result.ratio_p_value:.2g}.")
        for sentence in sentences(result, settings, outcome):
            out.print(sentence, markup=False, highlight=False, soft_wrap=True)
