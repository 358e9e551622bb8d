"""The needs of a workload: placement of tables, memory, traffic, step time, time of a pass, cost.

Rows are placed as TorchRec shards pooled lookups: ``replicated`` (every GPU has the whole table,
gradients are summed), ``row-wise`` (a GPU has every G-th row, adds up its part of every bag and
sends it by reduce-scatter, so traffic grows with G), ``column-wise`` (a GPU has some columns of
every row, sent by all-to-all; FBGEMM needs 4 columns a shard, so a table has at most D / 4 shards).

Axes: G GPUs, R different rows of a GPU's batch, D width.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, Literal, NamedTuple, get_args

from pipelines.engine.formats import duration, size
from pipelines.engine.memory import GIB
from pipelines.planning.machine import Hardware
from pipelines.planning.workload import FLOAT, MAX_GPUS, Workload

Placement = Literal["replicated", "row-wise", "column-wise"]
ID = 8
"""Bytes of an id."""
COUNTS = 16
"""Bytes an item takes on every GPU for its count, 8 kept and 8 while a step sums them."""


class EmbeddingTable(NamedTuple):
    """A table and how many of its rows a GPU's batch reads."""

    name: str
    rows: int
    rows_of_a_step: float
    ids_of_a_step: float


@dataclass(frozen=True, kw_only=True)
class Placed:
    """One table's placement and its cost to each GPU."""

    table: str
    rows: int
    placement: Placement
    weights_gib: float
    state_gib: float
    exchanged_mib: float
    """Sent by each GPU in a step: ids, rows, their gradients."""
    reduced_mib: float
    """Summed over GPUs in a step."""
    communication_ms: float


def list_tables(work: Workload, gpus: int) -> list[EmbeddingTable]:
    """List the tables of ids."""
    ids = work.values + work.candidates(gpus)
    items = EmbeddingTable("items", work.items, work.item_rows_of_a_step(gpus), ids)
    users = EmbeddingTable("users", work.users, work.user_rows_of_a_step, float(work.batch))
    return [items, users] if work.users else [items]


def exchange_ms(machine: Hardware, gpus: int, sent: float) -> float:
    """Time an exchange in which each GPU sends a number of bytes in all to the others, ms.

    Within a host by the curve of two GPUs, half of whose buffer leaves; between hosts by the
    network's rate.
    """
    if gpus == 1 or machine.all_to_all is None:
        return 0.0
    in_host = min(gpus, machine.gpus_a_host)
    near, far = (sent * peers / (gpus - 1) for peers in (in_host - 1, gpus - in_host))
    return max(machine.all_to_all.at(2 * near), far / (machine.network_gb_s * 1e6))


def reduce_ms(machine: Hardware, gpus: int, num_bytes: float) -> float:
    """Time an all-reduce (ring: each GPU sends 2 (G - 1) / G of the bytes; two GPUs send once)."""
    if gpus == 1 or machine.all_reduce is None:
        return 0.0
    sent = 2 * (gpus - 1) / gpus
    within = machine.all_reduce.at(num_bytes * sent)
    far = num_bytes * sent / (machine.network_gb_s * 1e6) if gpus > machine.gpus_a_host else 0.0
    return max(within, far)


def place(
    work: Workload, machine: Hardware, gpus: int, table: EmbeddingTable, placement: Placement
) -> Placed:
    """Place a table on every GPU, or a part of its rows or columns on each."""
    weights, state = work.table_bytes(table.rows)
    gradient, sent, others = 0.0, [0.0], (gpus - 1)
    pooled = table.rows_of_a_step * work.dim * FLOAT * others
    if placement == "replicated":
        # Gradients of all rows are summed.
        gradient = weights if gpus > 1 else 0.0
        weights += gradient
    elif placement == "row-wise":
        # A GPU's part of every bag goes to the GPU that has the bag.
        weights, state = weights / gpus, state / gpus
        sent = [table.rows_of_a_step * ID * others / gpus, pooled, pooled]
    else:
        shards = min(gpus, work.dim // 4)
        weights, state = weights / shards, state / shards
        if work.tables == "rowwise_adam":
            # Each shard has a word of its own for a row.
            state += FLOAT * table.rows * (1 - 1 / shards)
        pooled = table.rows_of_a_step * work.dim / shards * FLOAT * others
        sent = [table.rows_of_a_step * ID * others, pooled, pooled]
    # What is sent is written and read once at either end as well.
    passes = 2 * sum(sent[1:]) / (machine.copy_gb_s * 1e6)
    exchange = sum(exchange_ms(machine, gpus, one) for one in sent) + passes
    return Placed(
        table=table.name,
        rows=table.rows,
        placement=placement,
        weights_gib=weights / GIB,
        state_gib=state / GIB,
        exchanged_mib=sum(sent) / 2**20,
        reduced_mib=gradient / 2**20,
        communication_ms=reduce_ms(machine, gpus, gradient) if gradient else exchange,
    )


def placements(work: Workload, machine: Hardware, gpus: int, table: EmbeddingTable) -> list[Placed]:
    """List the placements of a table."""
    kinds = get_args(Placement) if gpus > 1 else ("replicated",)
    return [place(work, machine, gpus, table, kind) for kind in kinds]


@dataclass(frozen=True, kw_only=True)
class HardwarePlan:
    """Needs of one workload on a number of devices."""

    machine: str
    gpus: int
    """0 for a machine without any."""
    tables: list[Placed]
    memory_gib: dict[str, float]
    """Memory of each device by part; on a machine without GPUs, of its RAM."""
    memory_limit_gib: float
    fits: bool
    step_ms: dict[str, float]
    exchanged_mib: float
    reduced_mib: float
    events_a_second: float
    pass_hours: float
    """Time of one pass over a day's events."""
    cost: float | None
    """Cost of that pass; None without a price."""

    @property
    def total_gib(self) -> float:
        return sum(self.memory_gib.values())

    @property
    def total_ms(self) -> float:
        return sum(self.step_ms.values())

    @property
    def keeps_up(self) -> bool:
        """True if a day's events take less than a day."""
        return self.pass_hours <= 24

    def as_json(self) -> dict[str, Any]:
        """Return every number, with the sums."""
        sums = {"total_gib": self.total_gib, "total_ms": self.total_ms, "keeps_up": self.keeps_up}
        return asdict(self) | sums


def step_parts(work: Workload, machine: Hardware, gpus: int) -> dict[str, float]:
    """Time the work of one device in a step, without what it waits for, ms."""
    cost, scores = machine.step, work.score_elements(gpus)
    rows = (work.item_rows_of_a_step(gpus) + work.user_rows_of_a_step) * work.dim
    moved = (work.items + work.users) * work.dim if work.tables == "dense" else 0
    parts = {
        "fixed": cost.fixed_ms,
        "scores": (cost.score_ns + cost.score_dim_ns * work.dim / 64) * scores * 1e-6,
        "histories": (cost.event_ns + cost.value_ns * work.dim) * work.values * 1e-6,
        "most frequent item": cost.hottest_ns * work.hottest_events * 1e-6,
        "towers": cost.label_ns * work.batch * work.dim * 1e-6,
        "rows": (cost.row_ns * rows + cost.table_ns * moved) * 1e-6,
    }
    parts["waiting for launches"] = max(0.0, cost.host_ms - sum(parts.values()))
    return parts


def memory_parts(
    work: Workload, machine: Hardware, gpus: int, tables: list[Placed]
) -> dict[str, float]:
    """Break a device's memory down by what takes it, GiB."""
    rows = (work.item_rows_of_a_step(gpus) + work.user_rows_of_a_step) * work.dim
    step = (
        machine.score_bytes * work.score_elements(gpus)
        + machine.value_bytes * work.value_elements
        + machine.row_bytes * rows
    )
    # What is sent and what arrives, of two of the three exchanges of a step at a time.
    travelling = 2 * max(one.exchanged_mib for one in tables) / 1024
    weights = sum(one.weights_gib for one in tables)
    busy = step / GIB + travelling
    return {
        "weights": weights,
        "optimizer": sum(one.state_gib for one in tables),
        "counts": COUNTS * work.items / GIB,
        "towers": 4 * work.dense_weights * FLOAT / GIB,
        "step": step / GIB,
        "exchange": travelling,
        # Our kernels' tables are filled from the model's before training begins.
        "copy at the start": max(0.0, weights - busy) if gpus == 1 and not machine.is_cpu else 0.0,
    }


def plan_on(
    work: Workload, machine: Hardware, gpus: int, tables: list[Placed], price_per_hour: float | None
) -> HardwarePlan:
    """Count what these placements need."""
    devices = max(1, gpus)
    parts = step_parts(work, machine, devices)
    sharded = any(one.placement != "replicated" for one in tables)
    parts["sharding"] = machine.sharded_ms if sharded else 0.0
    parts["exchange of rows"] = sum(one.communication_ms for one in tables)
    parts["sum of gradients"] = reduce_ms(machine, devices, FLOAT * work.dense_weights)
    memory = memory_parts(work, machine, devices, tables)
    limit = machine.memory_gib - machine.reserved_gib
    step_seconds = sum(parts.values()) / 1e3
    hours = work.events_per_day / (work.batch * devices) * step_seconds / 3600
    price = None if price_per_hour is None else price_per_hour * devices * hours
    return HardwarePlan(
        machine=machine.name,
        gpus=gpus,
        tables=tables,
        memory_gib=memory,
        memory_limit_gib=limit,
        fits=sum(memory.values()) <= limit,
        step_ms={name: value for name, value in parts.items() if value > 0},
        exchanged_mib=sum(one.exchanged_mib for one in tables),
        reduced_mib=sum(one.reduced_mib for one in tables)
        + (FLOAT * work.dense_weights / 2**20 if devices > 1 else 0.0),
        events_a_second=work.batch * devices / step_seconds,
        pass_hours=hours,
        cost=price,
    )


def plan_for(
    work: Workload, machine: Hardware, gpus: int, price_per_hour: float | None = None
) -> HardwarePlan:
    """Choose the fastest placement that fits, else the smallest one.

    Args:
        gpus: 0 for a machine without GPUs.
        price_per_hour: Price of one device.
    """
    if machine.is_cpu and gpus:
        raise ValueError(f"{machine.name!r} has no GPUs, got gpus = {gpus}; take --gpus 0")
    if not machine.is_cpu and not 1 <= gpus <= MAX_GPUS:
        raise ValueError(f"gpus must be between 1 and {MAX_GPUS}, got {gpus}")
    if price_per_hour is not None and not 0 <= price_per_hour < 1e6:
        raise ValueError(f"price_per_hour must be between 0 and 1e6, got {price_per_hour:g}")
    devices = max(1, gpus)
    each = [placements(work, machine, devices, table) for table in list_tables(work, devices)]
    made = [plan_on(work, machine, gpus, list(chosen), price_per_hour) for chosen in product(*each)]
    fitting = [one for one in made if one.fits]
    if fitting:
        return min(fitting, key=lambda one: (one.total_ms, one.total_gib))
    return min(made, key=lambda one: one.total_gib)


def fewest_gpus(work: Workload, machine: Hardware, *, keeps_up: bool) -> HardwarePlan | None:
    """Find the fewest GPUs that hold a workload, and pass over a day's events within a day.

    Tries 1, 2, 4 ... up to the limit, then between the last two.
    """

    def serves(gpus: int) -> HardwarePlan | None:
        found = plan_for(work, machine, gpus)
        return found if found.fits and (found.keeps_up or not keeps_up) else None

    if machine.is_cpu:
        return serves(0)
    sizes = [2**power for power in range(MAX_GPUS.bit_length())]
    most = next((gpus for gpus in sizes if serves(gpus)), None)
    if most is None:
        return None
    between = range(most // 2 + 1, most + 1)
    place = bisect_left(between, x=True, key=lambda gpus: serves(gpus) is not None)
    return serves(between[place])


def gib(value: float) -> str:
    """Format a size that is counted in GiB."""
    return size(value * GIB)


def headline(
    plan: HardwarePlan, least: HardwarePlan | None, in_time: HardwarePlan | None
) -> list[str]:
    """Write whether it fits, then the fewest GPUs that would."""
    devices = f"{plan.gpus} x {plan.machine}" if plan.gpus else "this CPU"
    verb = "fits" if plan.fits else "does NOT fit"
    lines = [f"{verb} on {devices}: {gib(plan.total_gib)} of {gib(plan.memory_limit_gib)}"]
    if not plan.keeps_up:
        lines.append(f"too slow: a day's events take {duration(3600 * plan.pass_hours)}")
    if plan.gpus and least is None:
        lines.append("no number of these GPUs holds it; take a smaller dim")
    for purpose, found in (("hold it", least), ("train a day's events within a day", in_time)):
        if plan.gpus and found is not None:
            tables = ", ".join(f"{one.table} {one.placement}" for one in found.tables)
            lines.append(f"fewest that {purpose}: {found.gpus} ({tables})")
    return lines


def rows(plan: HardwarePlan) -> list[tuple[str, str, str]]:
    """List quantities, their size, and their parts, largest first."""

    def parts(values: dict[str, float], write: Callable[[float], str]) -> str:
        largest = sorted(values.items(), key=lambda one: -one[1])
        return ", ".join(f"{name} {write(value)}" for name, value in largest if value > 0)

    per_gpu = " a GPU" if plan.gpus else ""
    cost = "" if plan.cost is None else f"costs {plan.cost:,.2f}"
    return [
        *((f"table {one.table}", f"{one.rows:,} rows", one.placement) for one in plan.tables),
        (f"memory{per_gpu}", gib(plan.total_gib), parts(plan.memory_gib, gib)),
        ("step", f"{plan.total_ms:,.1f} ms", parts(plan.step_ms, "{:,.2f} ms".format)),
        ("sent by a GPU in a step", f"{plan.exchanged_mib:,.1f} MiB", "ids, rows, gradients"),
        ("summed over GPUs in a step", f"{plan.reduced_mib:,.1f} MiB", "gradients"),
        ("events a second", f"{plan.events_a_second:,.0f}", ""),
        ("one pass over a day's events", duration(3600 * plan.pass_hours), cost),
    ]
