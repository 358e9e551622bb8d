"""Commands on machines: ``doctor`` checks this one, ``plan`` estimates what a shop needs."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.cli.options import AsJson
from pipelines.cli.output import make_table, print_json, print_lines, print_table
from pipelines.engine.console import out
from pipelines.engine.formats import duration, size
from pipelines.engine.memory import GIB

if TYPE_CHECKING:
    from pipelines.planning.plan import HardwarePlan


def doctor(
    as_json: AsJson = False,
    seconds: Annotated[float, typer.Option(min=1.0, help="Limit of each library's check.")] = 60.0,
) -> None:
    """Check that everything is installed and works, and print the commands that fix it.

    Exits with 3 if something that the platform needs is broken.

    [bold]Example[/] recsys doctor
    """
    from pipelines.doctor.doctor import fixes, run_checks

    results = run_checks(seconds)
    failed = [one.name for one in results if one.status == "fail"]
    if as_json:
        print_json({"ok": not failed, "checks": [one._asdict() for one in results]})
    else:
        columns = ("", "check", "found", "wanted")
        rows = ((one.status, one.name, one.found, one.wanted) for one in results)
        print_table(columns, rows, fixed=columns[:2])
        print_lines(*fixes(results))
    raise typer.Exit(3 if failed else 0)


def plan(
    items: Annotated[float, typer.Option(help="Items of the catalogue, such as 1e8.")],
    users: Annotated[
        float, typer.Option(help="Rows of a table of user ids; 0: users are their histories.")
    ] = 0,
    dim: Annotated[int, typer.Option(help="Width of the embeddings.")] = 64,
    events_per_day: Annotated[float, typer.Option(help="Events that a pass trains on.")] = 1e6,
    gpus: Annotated[int, typer.Option(help="Number of GPUs; 0 is a CPU with two cores.")] = 1,
    gpu: Annotated[str, typer.Option(help="Kind of GPU, one of those measured.")] = "h200",
    batch: Annotated[
        int | None, typer.Option(help="Labels of a step on each GPU (8192; 512 on a CPU).")
    ] = None,
    history: Annotated[float, typer.Option(help="Mean events of a history.")] = 25,
    as_json: AsJson = False,
) -> None:
    """Estimate the hardware that the two-tower of a shop of this size needs.

    Memory, step time, time of one pass, how tables are sharded, whether it fits and the fewest GPUs
    that do, from measured constants. Nothing is run or rented. Exits with 3 if it does not fit.

    [bold]Examples[/]

      recsys plan --users 1e9 --items 1e8 --dim 64 --events-per-day 1e10 --gpus 64

      recsys plan --items 1e5 --events-per-day 1e6 --gpus 0
    """
    from pipelines.planning.plan import Workload, fewest_gpus, machine_named, plan_for

    machine = machine_named(gpu if gpus else "cpu")
    work = Workload(
        items=read_count("items", items),
        users=read_count("users", users),
        dim=dim,
        events_per_day=events_per_day,
        batch=(8_192 if gpus else 512) if batch is None else batch,
        negatives=8_192 if gpus else 2_048,
        history=history,
        tables="rowwise_adam" if gpus else "dense",
    )
    found, fewest = plan_for(work, machine, gpus), fewest_gpus(work, machine)
    if as_json:
        print_json(asdict(found) | {"fewest_gpus": fewest})
    else:
        print_plan(found, fewest)
        print_lines(f"constants of {'; '.join(machine.sources)}")
    raise typer.Exit(0 if found.fits else 3)


def print_plan(plan: HardwarePlan, fewest: int | None) -> None:
    """Print whether it fits, the fewest GPUs that would, and each quantity with its parts."""
    devices = f"{plan.gpus} x {plan.machine}" if plan.gpus else "this CPU"
    verb, total = "fits" if plan.fits else "does NOT fit", size(plan.total_gib * GIB)
    print_lines(f"{verb} on {devices}: {total} of {size(plan.memory_limit_gib * GIB)}")
    if plan.pass_hours > 24:
        print_lines(f"too slow: a day's events take {duration(3600 * plan.pass_hours)}")
    if plan.gpus and fewest is None:
        print_lines("no number of these GPUs holds it; take a smaller dim")
    elif plan.gpus:
        print_lines(f"fewest that hold it, as a power of two: {fewest}")
    memory = sorted(plan.memory_gib.items(), key=lambda part: -part[1])
    step = sorted(plan.step_ms.items(), key=lambda part: -part[1])
    tables = ", ".join(f"{name} {placed}" for name, placed in plan.placement.items())
    rows = [
        ("memory", total, ", ".join(f"{part} {size(gib * GIB)}" for part, gib in memory if gib)),
        (
            "step",
            f"{plan.total_ms:,.1f} ms",
            ", ".join(f"{part} {ms:,.2f} ms" for part, ms in step if ms),
        ),
        ("one pass over a day's events", duration(3600 * plan.pass_hours), tables),
    ]
    out.print(make_table(("", ">", ""), rows, heads=False))


def read_count(name: str, value: float) -> int:
    """Read a count, which may be written as 1e9."""
    if not math.isfinite(value) or value != int(value):
        raise ValueError(f"{name} must be a whole number such as 1e8, got {value:g}")
    return int(value)
