"""The command ``recsys judge``: lists held against rubrics, and the judges measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Column, Table

from pipelines.cli.options import AsJson
from pipelines.engine.console import out


def judge(
    workspace: Annotated[Path, typer.Argument(help="Folder of a run, with its stage evaluate.")],
    k: Annotated[int, typer.Option(help="Places of a list that are judged.", min=2)] = 10,
    users: Annotated[int, typer.Option(help="Users whose lists are judged.", min=2)] = 1_000,
    endpoint: Annotated[
        str | None,
        typer.Option(help="Also a language model: an OpenAI-compatible server's address."),
    ] = None,
    model: Annotated[str, typer.Option(help="The model's name there.")] = "",
    key_variable: Annotated[
        str, typer.Option(help="Name of the environment variable with its key.")
    ] = "",
    by_model: Annotated[
        int, typer.Option(help="Users whose lists the language model judges.", min=2)
    ] = 50,
    explained: Annotated[
        int, typer.Option(help="Users whose lists' explanations are judged; 0 for none.", min=0)
    ] = 20,
    as_json: AsJson = False,
) -> None:
    """Judge a run's lists on validation by rubrics, and measure the judges.

    Of each judge: its mean score of each model's lists, how it separates the served lists from
    planted bad ones (popular, duplicates, off_taste), how often it prefers the list that has the
    held-out event, what reversing and halving a list changes. A release gate takes only judges
    whose agreement is shown here (release.gate.judges).

    [bold]Examples[/]

      recsys judge runs/movielens-100k

      recsys judge runs/shop --endpoint http://127.0.0.1:8080/v1 --model qwen3 --by-model 100
    """
    from pipelines.judging.run import judge_lists
    from recsys.content.endpoint import Endpoint, EndpointConfig

    if (endpoint is None) != (model == ""):
        raise ValueError("a language model needs both --endpoint and --model")
    reached = None
    if endpoint is not None:
        config = EndpointConfig(base_url=endpoint, model=model, api_key_variable=key_variable)
        reached = Endpoint(config)
    document = judge_lists(
        workspace,
        k=k,
        num_users=users,
        num_by_model=by_model,
        num_explained=explained,
        model=reached,
    )
    if as_json:
        typer.echo(json.dumps(document))
        return
    report(document)


def report(document: Mapping[str, Any]) -> None:
    """Print a table of the judges, one of their correlations, and what the model cost."""
    judges = document["judges"]
    kinds = list(dict.fromkeys(kind for one in judges.values() for kind in one["separates"]))
    table = Table(
        "judge",
        *(Column(head, justify="right") for head in ("served", *(f"AUC {kind}" for kind in kinds))),
        Column("agrees with clicks", justify="right"),
        *(Column(head, justify="right") for head in ("reversed", "halved")),
        "gate",
        box=box.SIMPLE_HEAD,
        title=f"{document['num_users']} users, {document['k']} places, lists of "
        f"{document['served']} on validation",
    )
    for name, one in judges.items():
        separated = (_number(one["separates"].get(kind)) for kind in kinds)
        table.add_row(
            name,
            _number(one["mean"].get(document["served"])),
            *separated,
            _interval(one["clicks"]),
            _number(one["position_bias"]),
            _number(one["length_bias"]),
            "yes" if one["shown"] else "no",
        )
    out.print(table)
    names = list(document["correlation"])
    pairs = Table("correlation", *names, box=box.SIMPLE_HEAD)
    for name in names:
        pairs.add_row(name, *(_number(document["correlation"][name].get(one)) for one in names))
    out.print(pairs)
    if found := document.get("explanations"):
        out.print(
            f"explanations: {_percent(found['with_items'])} of {found['num_slots']} items have "
            f"items of the history named; without these {_percent(found['holds'])} lose places in "
            f"another history, without as many random ones {_percent(found['random_holds'])} "
            f"(AUC {_number(found['separates'])})",
            markup=False,
            soft_wrap=True,
        )
    for one in judges.values():
        if cost := one.get("cost"):
            out.print(
                f"{cost['model']}: {cost['num_requests']} requests, {cost['num_failed']} failed, "
                f"{cost['prompt_tokens']} tokens read and {cost['completion_tokens']} written, "
                f"{cost['seconds']:.0f} s",
                markup=False,
                soft_wrap=True,
            )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "none" if value is None else f"{value:.0%}"


def _interval(clicks: Mapping[str, float] | None) -> str:
    if clicks is None:
        return "no pairs"
    return f"{clicks['mean']:.1%} ({clicks['low']:.1%} to {clicks['high']:.1%})"
