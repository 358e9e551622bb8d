"""The command ``recsys ope``: what a policy would have earned on lists that were served."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Column, Table

from pipelines.cli.options import AsJson, Quiet
from pipelines.engine.console import log as err
from pipelines.engine.console import out

if TYPE_CHECKING:
    from pipelines.off_policy.evaluation import OffPolicyConfig

Policy = Annotated[
    str,
    typer.Option(help="A bundle, or a folder of lists as recsys score writes them."),
]
Log = Annotated[
    Path,
    typer.Option(
        "--log",
        help="Served lists: requests/ of what recsys events export wrote.",
    ),
]
Events = Annotated[
    Path | None, typer.Option(help="Export with the events; the folder above the lists without.")
]
Reward = Annotated[
    list[str] | None,
    typer.Option(help="Type of the events that are earned: click, cart, purchase (repeatable)."),
]
Surface = Annotated[list[str] | None, typer.Option(help="Only lists of this surface (repeatable).")]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        help="File of surfaces and rules, as of recsys serve, that the bundle is evaluated with; "
        "without it nothing is explored.",
    ),
]
Clip = Annotated[
    float | None, typer.Option(help="Cut weights there: less noise, for a value that is too low.")
]
Switch = Annotated[float, typer.Option(help="Weight above which switch DR trusts its model alone.")]
MaxLists = Annotated[int, typer.Option(help="Of a longer log so many lists are drawn.")]
Page = Annotated[
    Path | None, typer.Option("--out", help="Write a page with charts, such as p.html.")
]


def ope(
    policy: Policy,
    log: Log,
    events: Events = None,
    reward: Reward = None,
    surface: Surface = None,
    config: Config = None,
    clip: Clip = None,
    switch_at: Switch = 10.0,
    max_lists: MaxLists = 20_000,
    page: Page = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Estimate what a policy would have earned on lists that another one served.

    The log must have propensities: some surface explores (docs/control.md). Each request of it is
    answered by the evaluated bundle as of its moment, and rewards are weighed by how much likelier
    it shows the logged items. The table says which estimates can be trusted, and why not.

    [bold]Examples[/]

      recsys ope --policy bundles/bundle-1a2b --log online_events/requests --out ope.html

      recsys ope --policy bundles/current --config serving.toml --log online_events/requests
    """
    from pipelines.off_policy.evaluation import OffPolicyConfig
    from pipelines.off_policy.words import words_of

    settings = OffPolicyConfig(clip=clip, switch_at=switch_at, max_lists=max_lists)
    document = _served(
        Path(policy),
        {"log": log, "events": events, "reward": reward, "surfaces": surface},
        config,
        settings,
        quiet=quiet,
    )
    if page is not None:
        from pipelines.off_policy.page import off_policy_page
        from pipelines.pages.file import write_page

        write_page(off_policy_page(document), page)
    if as_json:
        out.print_json(json.dumps({**document, "words": words_of(document)}))
    else:
        _print(document)
    if page is not None:
        err.print(f"page: {page}", markup=False, soft_wrap=True)


def _served(
    policy: Path,
    where: Mapping[str, Any],
    config: Path | None,
    settings: OffPolicyConfig,
    *,
    quiet: bool,
) -> dict[str, Any]:
    """Evaluate a bundle or lists on served lists."""
    from rich.progress import track

    from pipelines.off_policy.evaluation import evaluate
    from pipelines.off_policy.policies import load_policy
    from pipelines.off_policy.served_log import read_served_log

    given = {name: value for name, value in where.items() if value}
    served = read_served_log(**given)
    evaluated = load_policy(policy, config)
    return evaluate(
        served,
        evaluated,
        settings,
        lambda places: track(
            places, "lists", console=err, transient=True, disable=quiet or not err.is_terminal
        ),
    )


def _print(document: Mapping[str, Any]) -> None:
    from pipelines.off_policy.words import cells, headings, words_of

    first, *others = headings(document)
    columns = (Column(first, no_wrap=True), *(Column(name, justify="right") for name in others))
    table = Table(*columns, box=box.SIMPLE_HEAD)
    for row in document["rows"]:
        table.add_row(*cells(document, row))
    out.print(table)
    for text in words_of(document):
        out.print(text, markup=False, soft_wrap=True)
