"""The value of served lists: ``experiments`` compares arms, ``ope`` estimates other policies."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from pipelines.cli.options import AsJson, Quiet, ServingConfig
from pipelines.cli.output import print_block, print_json, print_lines
from pipelines.engine.console import log as err

if TYPE_CHECKING:
    from pipelines.experiments.analysis import Shares


def experiments(
    exported: Annotated[Path, typer.Option(help="Folder of recsys data export.")],
    serving_config: ServingConfig = None,
    event: Annotated[str, typer.Option(help="Type of the events that are the outcome.")] = "click",
    window: Annotated[
        str, typer.Option(help="Time after a user's first list that counts: 90s, 30m, 6h or 7d.")
    ] = "1d",
    as_json: AsJson = False,
) -> None:
    """Compare the arms of every experiment with its first, by a test that allows daily looks.

    Each user counts once, under the arm of their first list, when the window after it is over.
    Events count if they name a list that was served within it. Without --serving-config arms are
    taken to have equal shares.

    [bold]Example[/]

      recsys experiments --exported runs/shop/online_events --serving-config serving.toml
    """
    from pipelines.experiments.analysis import analyse, read_export
    from serving.online.events import EventType
    from serving.surfaces import read_duration

    if event not in (known := get_args(EventType)):
        raise ValueError(f"--event {event} is not known; choose one of {', '.join(known)}")
    length = read_duration(window)
    if not isinstance(length, timedelta) or not length:
        raise ValueError(f"--window {window} must be longer than 0")
    results = analyse(read_export(exported, event), length, arm_weights(serving_config))
    if as_json:
        print_json([asdict(one) for one in results])
        return
    if not results:
        print_lines("No list of an experiment was served.")
    for result in results:
        print_block(result.table())
        if result.ratio_p_value is not None:
            print_lines(f"Shares of arms: p = {result.ratio_p_value:.2g}.")
        print_lines(*result.sentences(f"{event} events per user"))


def arm_weights(path: Path | None) -> Shares | None:
    """Read the weights of the experiments' arms."""
    if path is None:
        return None
    from serving.configuration.file import read_configuration

    return {
        one.name: {arm.name: arm.weight for arm in one.arms}
        for one in read_configuration(path).experiments
    }


def ope(
    policy: Annotated[Path, typer.Option(help="Bundle to evaluate.")],
    log: Annotated[Path, typer.Option(help="Folder of recsys data export.")],
    reward: Annotated[
        list[str] | None,
        typer.Option(help="Type of the events that are earned: click, cart, purchase."),
    ] = None,
    serving_config: ServingConfig = None,
    max_lists: Annotated[int, typer.Option(help="Sample at most n lists.")] = 20_000,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Estimate what a bundle would have earned on lists that another one served.

    The log must have propensities: some surface explores (docs/control.md). Each request is
    answered by the evaluated bundle as of its moment, and rewards are weighted by how much likelier
    it shows the logged items. The table says whether the estimates can be trusted, and why not.
    Without --serving-config nothing is explored.

    [bold]Example[/]

      recsys ope --policy bundles/current --serving-config serving.toml --log online_events
    """
    from rich.progress import track

    from pipelines.off_policy.evaluation import BundlePolicy, OffPolicyConfig, evaluate
    from pipelines.off_policy.served_log import read_served_log
    from pipelines.off_policy.summary import estimates_table, summarize

    settings = OffPolicyConfig(max_lists=max_lists)
    served = read_served_log(log, reward=reward or ("click",))
    hidden = quiet or not err.is_terminal
    document = evaluate(
        served,
        BundlePolicy.load(policy, serving_config),
        settings,
        lambda places: track(places, "lists", console=err, transient=True, disable=hidden),
    )
    if as_json:
        print_json({**document, "words": summarize(document)})
    else:
        print_block(estimates_table(document))
        print_lines(*summarize(document))
