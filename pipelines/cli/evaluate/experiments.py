"""The value of served lists: ``experiments`` compares arms, ``ope`` estimates other policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from pipelines.cli.options import AsJson, Out, Quiet, ServingConfig, Store
from pipelines.cli.output import print_block, print_json, print_lines
from pipelines.engine.console import log as err

if TYPE_CHECKING:
    from pipelines.experiments.analysis import AnalysisConfig, ExperimentResult, Shares
    from pipelines.experiments.collected import Collected


def experiments(
    store: Store = None,
    exported: Annotated[
        Path | None, typer.Option(help="Folder of recsys data export, instead of a store.")
    ] = None,
    serving_config: ServingConfig = None,
    event: Annotated[str, typer.Option(help="Type of the events that are the outcome.")] = "click",
    metric: Annotated[
        str, typer.Option(help="per_user, per_list, or share (of users with such an event).")
    ] = "per_user",
    window: Annotated[
        str, typer.Option(help="Time after a user's first list that counts: 90s, 30m, 6h or 7d.")
    ] = "1d",
    html: Annotated[Path | None, typer.Option(help="Write a page with charts too.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare the arms of every experiment with its first, by a test that allows daily looks.

    Each user counts once, under the arm of their first list, when the window after it is over.
    Events count if they name a list that was served within it. Without --serving-config arms are
    taken to have equal shares.

    [bold]Examples[/]

      recsys experiments --store sqlite:runs/shop/online --serving-config serving.toml

      recsys experiments --exported runs/shop/online_events --event purchase --html arms.html
    """
    from pipelines.experiments.analysis import METRICS, AnalysisConfig, analyse
    from pipelines.experiments.page import outcome_name
    from serving.surfaces import read_duration

    if metric not in METRICS:
        raise ValueError(f"--metric {metric} is not known; choose one of {', '.join(METRICS)}")
    length = read_duration(window)
    if not isinstance(length, timedelta) or not length:
        raise ValueError(f"--window {window} must be longer than 0")
    settings, weights = AnalysisConfig(metric=metric, window=length), arm_weights(serving_config)
    results = analyse(read_collected(store, exported, event), settings, weights)
    outcome = outcome_name(settings.metric, event)
    if html is not None:
        if not results:
            raise ValueError("no list of an experiment was served, so there is no page to write")
        from pipelines.experiments.page import experiments_page
        from pipelines.pages.file import write_page

        write_page(experiments_page(results, settings, outcome), html)
    if as_json:
        names = ("name", "arms", "ratio_p_value", "moved_users")
        print_json([{name: asdict(one)[name] for name in names} for one in results])
    else:
        print_experiments(results, settings, outcome)
    if html is not None:
        print_lines(f"page: {html}", note=True)


def read_collected(store: str | None, exported: Path | None, event: str) -> Collected:
    """Read lists and events from a store or an export."""
    from pipelines.experiments.collected import from_export, from_store
    from serving.online.events import EventType

    if event not in (types := get_args(EventType)):
        raise ValueError(f"--event {event} is not known; choose one of {', '.join(types)}")
    if store is not None and exported is None:
        return from_store(store, event)
    if exported is not None and store is None:
        return from_export(exported, event)
    raise ValueError("name either --store sqlite:FOLDER (or redis://...) or --exported FOLDER")


def arm_weights(path: Path | None) -> Shares | None:
    """Read the weights of the experiments' arms."""
    if path is None:
        return None
    from serving.configuration.file import read_configuration

    return {
        one.name: {arm.name: arm.weight for arm in one.arms}
        for one in read_configuration(path).experiments
    }


def print_experiments(
    results: Sequence[ExperimentResult], settings: AnalysisConfig, outcome: str
) -> None:
    """Print a table and the conclusions of each experiment."""
    from pipelines.experiments.page import arms_table, sentences

    if not results:
        print_lines("No list of an experiment was served.")
    for result in results:
        print_block(arms_table(result, outcome))
        if result.ratio_p_value is not None:
            print_lines(f"Shares of arms: p = {result.ratio_p_value:.2g}.")
        print_lines(*sentences(result, settings, outcome))


def ope(
    policy: Annotated[
        Path, typer.Option(help="Bundle, or folder of lists that recsys score wrote.")
    ],
    log: Annotated[
        Path, typer.Option(help="Served lists: the folder requests/ of recsys data export.")
    ],
    events: Annotated[
        Path | None, typer.Option(help="Export with the events; by default the log's parent.")
    ] = None,
    reward: Annotated[
        list[str] | None,
        typer.Option(help="Type of the events that are earned: click, cart, purchase."),
    ] = None,
    surface: Annotated[
        list[str] | None, typer.Option(help="Only lists of this surface (repeatable).")
    ] = None,
    serving_config: ServingConfig = None,
    clip: Annotated[
        float | None, typer.Option(help="Clip importance weights (lower variance, biased low).")
    ] = None,
    switch_at: Annotated[
        float, typer.Option(help="Weight above which switch DR uses its model only.")
    ] = 10.0,
    max_lists: Annotated[int, typer.Option(help="Sample at most n lists.")] = 20_000,
    page: Out = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Estimate what a policy would have earned on lists that another one served.

    The log must have propensities: some surface explores (docs/control.md). Each request is
    answered by the evaluated bundle as of its moment, and rewards are weighted by how much likelier
    it shows the logged items. The table says which estimates can be trusted, and why not. Without
    --serving-config nothing is explored.

    [bold]Examples[/]

      recsys ope --policy bundles/bundle-1a2b --log online_events/requests --out ope.html

      recsys ope --policy bundles/current --serving-config serving.toml --log online_events/requests
    """
    from pipelines.off_policy.evaluation import OffPolicyConfig, evaluate
    from pipelines.off_policy.page import summarize
    from pipelines.off_policy.policies import load_policy
    from pipelines.off_policy.served_log import read_served_log

    settings = OffPolicyConfig(clip=clip, switch_at=switch_at, max_lists=max_lists)
    given = {"log": log, "events": events, "reward": reward, "surfaces": surface}
    served = read_served_log(**{name: value for name, value in given.items() if value})  # type: ignore[arg-type]
    hidden = quiet or not err.is_terminal
    document = evaluate(
        served, load_policy(policy, serving_config), settings, lambda places: bar(places, hidden)
    )
    if page is not None:
        from pipelines.off_policy.page import off_policy_page
        from pipelines.pages.file import write_page

        write_page(off_policy_page(document), page)
    if as_json:
        print_json({**document, "words": summarize(document)})
    else:
        print_estimates(document)
    if page is not None:
        print_lines(f"page: {page}", note=True)


def bar(places: Any, hidden: bool) -> Any:
    """Show progress over lists."""
    from rich.progress import track

    return track(places, "lists", console=err, transient=True, disable=hidden)


def print_estimates(document: Mapping[str, Any]) -> None:
    """Print the estimates and how far each can be trusted."""
    from pipelines.off_policy.page import SHORT, estimates_table, summarize

    print_block(estimates_table(document), SHORT)
    print_lines(*summarize(document))
