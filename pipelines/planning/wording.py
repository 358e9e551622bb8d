"""A plan in words and as rows of a table, for a terminal."""

from __future__ import annotations

from pipelines.engine.formats import duration, size
from pipelines.engine.memory import GIB
from pipelines.planning.placement import Placed
from pipelines.planning.plan import Plan


def gib(value: float) -> str:
    """Format a size that is counted in GiB."""
    return size(value * GIB)


def headline(plan: Plan, least: Plan | None, in_time: Plan | None) -> list[str]:
    """Say first whether it fits, then what would."""
    devices = f"{plan.gpus} x {plan.machine}" if plan.gpus else "this CPU"
    lines = []
    if plan.fits:
        lines.append(f"fits on {devices}: {gib(plan.total_gib)} of {gib(plan.memory_limit_gib)}")
    else:
        lines.append(
            f"does NOT fit on {devices}: needs {gib(plan.total_gib)} of "
            f"{gib(plan.memory_limit_gib)}, and {gib(plan.host_gib)} of "
            f"{gib(plan.host_limit_gib)} host memory for each"
        )
    if not plan.keeps_up:
        lines.append(f"falls behind: a day's events take {duration(3600 * plan.pass_hours)}")
    lines += [] if not plan.gpus else [_fewest(least, in_time)]
    return lines


def _fewest(least: Plan | None, in_time: Plan | None) -> str:
    if least is None:
        return "no number of these GPUs holds it; take smaller dim or negatives"
    text = f"fewest that hold it: {least.gpus} ({how(least)})"
    if in_time is None:
        return f"{text}; no number trains a day's events within a day"
    if in_time.gpus == least.gpus:
        return f"{text}, which also train a day's events within a day"
    return f"{text}; to train a day's events within a day: {in_time.gpus} ({how(in_time)})"


def how(plan: Plan) -> str:
    """Name each table's placement."""
    return ", ".join(f"{one.table} {placement(one)}" for one in plan.tables)


def placement(one: Placed) -> str:
    """Name where a table's rows live."""
    if one.hot_share == 1:
        return one.placement
    return f"{one.placement}: {one.hot_share:.0%} of them on the GPU"


def rows(plan: Plan) -> list[tuple[str, str, str]]:
    """List what, how much, and of what it is made."""
    memory = {name: value for name, value in plan.memory_gib.items() if value > 0}
    found = [(f"table {one.table}", f"{one.rows:,} rows", placement(one)) for one in plan.tables]
    place = "memory a GPU" if plan.gpus else "memory"
    found.append((place, gib(plan.total_gib), _parts(memory, gib)))
    if plan.host_gib:
        found.append(("host memory a GPU", gib(plan.host_gib), "weights and state of all rows"))
    found.append(("step", f"{plan.total_ms:,.1f} ms", _parts(plan.step_ms, _ms)))
    if plan.gpus > 1:
        sent = f"{plan.exchanged_mib:,.1f} MiB"
        found.append(("sent by a GPU in a step", sent, "ids, rows and their gradients"))
        found.append(("summed over GPUs in a step", f"{plan.reduced_mib:,.1f} MiB", "gradients"))
    found.append(("events a second", f"{plan.events_a_second:,.0f}", ""))
    cost = "" if plan.cost is None else f"costs {plan.cost:,.2f}"
    found.append(("one pass over a day's events", duration(3600 * plan.pass_hours), cost))
    return found


def _ms(value: float) -> str:
    return f"{value:,.2f} ms"


def _parts(parts: dict[str, float], write: object) -> str:
    assert callable(write)
    largest = sorted(parts.items(), key=lambda one: -one[1])
    return ", ".join(f"{name} {write(value)}" for name, value in largest)
