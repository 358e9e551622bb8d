"""The command ``recsys plan``: what hardware a size of shop needs."""

from __future__ import annotations

import json
import math
from typing import Annotated

import typer
from rich import box
from rich.table import Column, Table

from pipelines.cli.options import AsJson
from pipelines.engine.console import out


def plan(
    items: Annotated[float, typer.Option(help="Items of the catalogue, such as 1e8.")],
    users: Annotated[
        float, typer.Option(help="Rows of a table of user ids; 0: users are their histories.")
    ] = 0,
    dim: Annotated[int, typer.Option(help="Width of the embeddings.")] = 64,
    events_per_day: Annotated[float, typer.Option(help="Events that a pass trains on.")] = 1e6,
    gpus: Annotated[int, typer.Option(help="How many; 0 is a CPU with two cores.")] = 1,
    gpu: Annotated[str, typer.Option(help="Which, of those measured.")] = "h200",
    price_per_hour: Annotated[float | None, typer.Option(help="Of one GPU, or the CPU.")] = None,
    batch: Annotated[
        int | None, typer.Option(help="Labels of a step on each GPU (8192; 512 on a CPU).")
    ] = None,
    negatives: Annotated[
        int | None, typer.Option(help="Uniform negatives of a step (8192; 2048 on a CPU).")
    ] = None,
    history: Annotated[float, typer.Option(help="Mean events of a history.")] = 25,
    optimizer: Annotated[
        str | None,
        typer.Option(help="How table rows move: rowwise_adam (GPU), adam, dense (CPU)."),
    ] = None,
    skew: Annotated[float, typer.Option(help="Zipf exponent of the ids; 0 is even.")] = 1.0,
    memory_gib: Annotated[
        float | None, typer.Option(help="Of the GPU, or the CPU's RAM, instead of the known one.")
    ] = None,
    host_rows: Annotated[
        bool,
        typer.Option(
            "--host-rows", help="Count with rows in host memory, hot ones on the GPU (measured)."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say what hardware the two-tower of a shop of this size needs, from measured constants.

    Memory, traffic, step time, time and cost of one pass, how tables are sharded, whether it fits
    and the fewest GPUs that do. Nothing is run or rented. Exits with 3 where it does not fit.

    [bold]Examples[/]

      recsys plan --users 1e9 --items 1e8 --dim 64 --events-per-day 1e10 --gpus 64

      recsys plan --items 1e5 --events-per-day 1e6 --gpus 0
    """
    from dataclasses import replace

    from pipelines.planning.machine import machine_named
    from pipelines.planning.plan import fewest_gpus, plan_for
    from pipelines.planning.wording import headline, rows
    from pipelines.planning.workload import Workload

    machine = machine_named(gpu if gpus else "cpu")
    if memory_gib is not None:
        if not 1 <= memory_gib <= 1e5:
            raise ValueError(f"memory_gib must be between 1 and 1e5, got {memory_gib:g}")
        machine = replace(machine, memory_gib=memory_gib)
    work = Workload(
        items=whole("items", items),
        users=whole("users", users),
        dim=dim,
        events_per_day=events_per_day,
        batch=(8_192 if gpus else 512) if batch is None else batch,
        negatives=(8_192 if gpus else 2_048) if negatives is None else negatives,
        history=history,
        tables=("rowwise_adam" if gpus else "dense") if optimizer is None else optimizer,  # type: ignore[arg-type]
        skew=skew,
    )
    found = plan_for(work, machine, gpus, price_per_hour, from_host=host_rows)
    least = fewest_gpus(work, machine, keeps_up=False, from_host=host_rows)
    in_time = fewest_gpus(work, machine, keeps_up=True, from_host=host_rows)
    if as_json:
        fewest = {"fewest_gpus": None if least is None else least.gpus}
        fewest["fewest_gpus_in_time"] = None if in_time is None else in_time.gpus
        out.print_json(json.dumps(found.as_json() | fewest))
    else:
        for line in headline(found, least, in_time):
            out.print(line, markup=False, soft_wrap=True)
        out.print(table_of(rows(found)))
        sources = "; ".join(machine.sources)
        out.print(f"constants of {machine.name}: {sources}", markup=False, soft_wrap=True)
    raise typer.Exit(0 if found.fits else 3)


def whole(name: str, value: float) -> int:
    """Read a count, which may be written as 1e9.

    Raises:
        ValueError: It is no whole number.
    """
    if not math.isfinite(value) or value != int(value):
        raise ValueError(f"{name} must be a whole number such as 1e8, got {value:g}")
    return int(value)


def table_of(lines: list[tuple[str, str, str]]) -> Table:
    """Lay out what, how much, of what."""
    columns = ("", Column("", justify="right", no_wrap=True), "")
    table = Table(*columns, box=box.SIMPLE_HEAD, show_header=False)
    for line in lines:
        table.add_row(*line)
    return table
