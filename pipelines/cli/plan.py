"""The command ``recsys plan``: what hardware a size of shop needs."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Column, Table

from pipelines.cli.options import AsJson
from pipelines.engine.console import out

if TYPE_CHECKING:
    from pipelines.planning.machine import Machine
    from pipelines.planning.plan import Plan
    from pipelines.planning.workload import Workload

Users = Annotated[
    float, typer.Option(help="Rows of a table of user ids; 0: users are their histories.")
]
PerDay = Annotated[float, typer.Option(help="Events that a pass trains on.")]
Gpus = Annotated[int, typer.Option(help="How many; 0 is a CPU with two cores.")]
Price = Annotated[float | None, typer.Option(help="Of one GPU, or of the CPU.")]
Batch = Annotated[
    int | None, typer.Option(help="Labels of a step on each GPU (8192; 512 on a CPU).")
]
Negatives = Annotated[
    int | None, typer.Option(help="Uniform negatives of a step (8192; 2048 on a CPU).")
]
Optimizer = Annotated[
    str | None, typer.Option(help="How table rows move: rowwise_adam (GPU), adam, dense (CPU).")
]
Head = Annotated[float, typer.Option(help="Top items that are about equally frequent.")]
Memory = Annotated[
    float | None, typer.Option(help="GiB of the GPU, or of the CPU's RAM, other than is known.")
]
HostRows = Annotated[
    bool,
    typer.Option("--host-rows", help="Count rows in host memory, hot ones on the GPU, as well."),
]


def plan(
    items: Annotated[float, typer.Option(help="Items of the catalogue, such as 1e8.")],
    users: Users = 0,
    dim: Annotated[int, typer.Option(help="Width of the embeddings.")] = 64,
    events_per_day: PerDay = 1e6,
    gpus: Gpus = 1,
    gpu: Annotated[str, typer.Option(help="Which, of those measured.")] = "h200",
    price_per_hour: Price = None,
    batch: Batch = None,
    negatives: Negatives = None,
    history: Annotated[float, typer.Option(help="Mean events of a history.")] = 25,
    optimizer: Optimizer = None,
    skew: Annotated[float, typer.Option(help="Zipf exponent of the ids; 0 is even.")] = 1.0,
    head: Head = 0,
    memory_gib: Memory = None,
    host_rows: HostRows = False,
    as_json: AsJson = False,
) -> None:
    """Say what hardware the two-tower of a shop of this size needs, from measured constants.

    Memory, traffic, step time, time and cost of one pass, how tables are sharded, whether it fits
    and the fewest GPUs that do. Nothing is run or rented. Exits with 3 where it does not fit.

    [bold]Examples[/]

      recsys plan --users 1e9 --items 1e8 --dim 64 --events-per-day 1e10 --gpus 64

      recsys plan --items 1e5 --events-per-day 1e6 --gpus 0
    """
    from pipelines.planning.machine import machine_named
    from pipelines.planning.plan import fewest_gpus, plan_for

    machine = with_memory(machine_named(gpu if gpus else "cpu"), memory_gib)
    sizes: dict[str, Any] = {
        "items": whole("items", items),
        "users": whole("users", users),
        "dim": dim,
        "events_per_day": events_per_day,
        "batch": batch,
        "negatives": negatives,
        "history": history,
        "tables": optimizer,
        "skew": skew,
        "head": head,
    }
    work = workload(sizes, on_cpu=gpus == 0)
    found = plan_for(work, machine, gpus, price_per_hour, from_host=host_rows)
    least = fewest_gpus(work, machine, keeps_up=False, from_host=host_rows)
    in_time = fewest_gpus(work, machine, keeps_up=True, from_host=host_rows)
    show(machine, found, least, in_time, as_json=as_json)
    raise typer.Exit(0 if found.fits else 3)


def with_memory(machine: Machine, memory_gib: float | None) -> Machine:
    """Take another size of memory than the known one.

    Raises:
        ValueError: It is out of its range.
    """
    from dataclasses import replace

    if memory_gib is None:
        return machine
    if not 1 <= memory_gib <= 1e5:
        raise ValueError(f"memory_gib must be between 1 and 1e5, got {memory_gib:g}")
    return replace(machine, memory_gib=memory_gib)


def workload(sizes: dict[str, Any], *, on_cpu: bool) -> Workload:
    """Put the sizes together, with a batch and an optimizer that suit the device."""
    from pipelines.planning.workload import Workload

    usual = {
        "batch": 512 if on_cpu else 8_192,
        "negatives": 2_048 if on_cpu else 8_192,
        "tables": "dense" if on_cpu else "rowwise_adam",
    }
    return Workload(**(usual | {name: one for name, one in sizes.items() if one is not None}))


def whole(name: str, value: float) -> int:
    """Read a count, which may be written as 1e9.

    Raises:
        ValueError: It is no whole number.
    """
    if not math.isfinite(value) or value != int(value):
        raise ValueError(f"{name} must be a whole number such as 1e8, got {value:g}")
    return int(value)


def show(
    machine: Machine, found: Plan, least: Plan | None, in_time: Plan | None, *, as_json: bool
) -> None:
    """Print a plan and the fewest GPUs that hold it and that train a day's events within a day."""
    from pipelines.planning.wording import headline, rows

    if as_json:
        fewest = {
            "fewest_gpus": None if least is None else least.gpus,
            "fewest_gpus_in_time": None if in_time is None else in_time.gpus,
        }
        out.print_json(json.dumps(found.as_json() | fewest))
        return
    for line in headline(found, least, in_time):
        out.print(line, markup=False, soft_wrap=True)
    columns = ("", Column("", justify="right", no_wrap=True), "")
    table = Table(*columns, box=box.SIMPLE_HEAD, show_header=False)
    for row in rows(found):
        table.add_row(*row)
    out.print(table)
    out.print(f"constants of {'; '.join(machine.sources)}", markup=False, soft_wrap=True)
