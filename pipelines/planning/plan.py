"""Hardware that the two-tower of a shop needs: memory, traffic, step time, time and cost of a pass.

Pure arithmetic on the measured constants of ``machines.json``. Tables are placed as TorchRec shards
pooled lookups: ``replicated`` (gradients are summed over GPUs), ``row-wise`` (a GPU has every G-th
row and sends its part of every bag, so traffic grows with G) or ``column-wise`` (a GPU has at least
4 columns of every row). Ids follow Zipf's law.

Axes: G GPUs, B labels of a GPU's batch, C uniform negatives, M history values, D width.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import numpy as np

from pipelines.engine.memory import GIB

MACHINES = Path(__file__).parent / "machines.json"
PLACEMENTS = ("replicated", "row-wise", "column-wise")
FLOAT, ID = 4, 8
"""Bytes of a weight and of an id."""
COUNTS = 16
"""Bytes of an item's counts on every GPU: 8 kept, 8 while a step sums them."""
MAX_GPUS = 65_536
LIMITS = {
    "items": (1, 1e12),
    "users": (0, 1e12),
    "batch": (1, 1 << 22),
    "negatives": (0, 1 << 22),
    "events_per_day": (1, 1e15),
    "history": (1, 1e5),
}


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """Measured constants of one kind of device, its host, and the links between several."""

    name: str
    memory_gib: float
    reserved_gib: float
    """Taken by the driver, libraries and fragments."""
    gpus_a_host: int
    step: Mapping[str, float]
    """Milliseconds of a step, and nanoseconds by number of scores, history values, rows, ..."""
    score_bytes: float
    value_bytes: float
    row_bytes: float
    """Memory of a step by score, number of the history's values, number of the rows."""
    copy_gb_s: float
    sharded_ms: float = 0.0
    """Further milliseconds of a step with sharded tables."""
    all_to_all: Mapping[str, list[float]] = field(default_factory=dict)
    """Measured ``kib`` and ``ms`` between two GPUs of a host; empty for a CPU."""
    all_reduce: Mapping[str, list[float]] = field(default_factory=dict)
    network_gb_s: float = 50.0
    """Rate of each GPU's link between hosts, assumed (400 Gbit/s)."""
    sources: list[str] = field(default_factory=list)


def machine_named(name: str) -> Hardware:
    """Look up the constants of a machine."""
    machines = json.loads(MACHINES.read_text(encoding="utf-8"))
    if name.lower() not in machines:
        raise ValueError(
            f"no measured constants of {name!r}; there are {', '.join(sorted(machines))}. "
            "Measure yours with python -m tests.benchmarks.planning.benchmark_steps"
        )
    return Hardware(name=name.lower(), **machines[name.lower()])


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A two-tower over a shop of this size."""

    items: int
    users: int = 0
    """Rows of a table of user ids; 0 if users are their histories, as in the presets."""
    dim: int = 64
    events_per_day: float = 1e6
    batch: int = 8_192
    """Labels of a step on each GPU."""
    history: float = 25.0
    negatives: int = 8_192
    tables: str = "rowwise_adam"
    """``rowwise_adam`` or ``dense``, as ``optimizer.tables`` of a run."""
    head: float = 0.0
    """Items at the top that are about equally frequent (Mandelbrot's shift of the ranks)."""

    def __post_init__(self) -> None:
        for name, (least, most) in LIMITS.items():
            value = getattr(self, name)
            if not math.isfinite(value) or not least <= value <= most:
                raise ValueError(f"{name} must be between {least:g} and {most:g}, got {value:g}")
        if self.dim % 4 or not 4 <= self.dim <= 4_096:
            raise ValueError(f"dim must be a multiple of 4 between 4 and 4096, got {self.dim}")

    @property
    def values(self) -> float:
        """History values of a GPU's batch, M."""
        return self.batch * self.history

    def score_elements(self, gpus: int) -> float:
        """Count the scores of one GPU, B x (G B + C)."""
        return float(self.batch * (self.batch * gpus + self.negatives))

    def item_rows_of_a_step(self, gpus: int) -> float:
        """Expect the different item rows that one GPU reads; uniform ones hardly repeat."""
        drawn = distinct_rows(self.items, self.values + self.batch * gpus, self.head)
        even = min(self.negatives, self.items) * (1 - drawn / self.items)
        return min(float(self.items), drawn + even)

    @property
    def hottest_events(self) -> float:
        """Expect how often the most frequent item occurs in a GPU's histories."""
        edges, shares = _ranks(self.items, self.head)
        in_first = np.clip((2 - edges[:-1]) / np.diff(edges), 0, 1)
        return self.values * float((in_first * shares * np.diff(edges)).sum())

    @property
    def dense_weights(self) -> int:
        """Weights of the towers besides their tables."""
        return 8 * self.dim**2 + round(2 * self.history) * self.dim + 16 * self.dim


def _ranks(rows: int, head: float) -> tuple[np.ndarray, np.ndarray]:
    """Split ranks into 4,000 parts: their edges, and the share of one rank in each."""
    edges = np.geomspace(1, rows + 1, 4_000)
    weights = 1 / (np.sqrt(edges[1:] * edges[:-1]) + head)
    return edges, weights / (weights * np.diff(edges)).sum()


def distinct_rows(rows: int, draws: float, head: float = 0.0) -> float:
    """Expect how many different rows are drawn with density 1 / (rank + head)."""
    if not rows:
        return 0.0
    edges, share = _ranks(rows, head)
    return float((np.diff(edges) * -np.expm1(-draws * share)).sum())


def link_ms(machine: Hardware, link: str, gpus: int, near: float, far: float) -> float:
    """Time bytes within a host by its curve, at the last rate beyond it, and between hosts, ms."""
    curve = getattr(machine, link)
    if gpus == 1 or not curve:
        return 0.0
    kib, last = near / 1024, curve["kib"][-1]
    inside = np.interp(kib, curve["kib"], curve["ms"]) * max(1.0, kib / last)
    return max(float(inside), far / (machine.network_gb_s * 1e6))


def exchange_ms(machine: Hardware, gpus: int, sent: float) -> float:
    """Time bytes that each GPU sends to the others in all; half of a measured buffer leaves."""
    in_host = min(gpus, machine.gpus_a_host)
    near, far = (sent * peers / max(1, gpus - 1) for peers in (in_host - 1, gpus - in_host))
    return link_ms(machine, "all_to_all", gpus, 2 * near, far)


def reduce_ms(machine: Hardware, gpus: int, num_bytes: float) -> float:
    """Time an all-reduce by a ring: each GPU sends 2 (G - 1) / G of the bytes."""
    sent = num_bytes * 2 * (gpus - 1) / gpus
    return link_ms(machine, "all_reduce", gpus, sent, sent if gpus > machine.gpus_a_host else 0.0)


@dataclass(frozen=True, kw_only=True)
class Placed:
    """One table's placement and its cost to each GPU."""

    table: str
    rows: int
    placement: str
    weights_gib: float
    state_gib: float
    exchanged_mib: float
    """Ids, rows and gradients that each GPU sends in a step."""
    reduced_mib: float
    communication_ms: float


def place(
    work: Workload, machine: Hardware, gpus: int, table: str, rows_read: float, placement: str
) -> Placed:
    """Place the table ``items`` or ``users``, of which a GPU's batch reads some rows."""
    rows, others = getattr(work, table), gpus - 1
    weights, gradient, sent = float(rows * work.dim * FLOAT), 0.0, [0.0]
    by_row = work.tables == "rowwise_adam"
    state = weights * (1 + 1 / work.dim if by_row else 2.0)
    pooled = rows_read * work.dim * FLOAT * others
    if placement == "replicated":
        gradient = weights if gpus > 1 else 0.0
        weights += gradient
    elif placement == "row-wise":
        weights, state = weights / gpus, state / gpus
        sent = [rows_read * ID * others / gpus, pooled, pooled]
    else:
        shards = min(gpus, work.dim // 4)
        weights, state = weights / shards, state / shards
        # Each shard has an optimizer's word of its own for a row.
        state += FLOAT * rows * (1 - 1 / shards) if by_row else 0.0
        sent = [rows_read * ID * others, pooled / shards, pooled / shards]
    # Sent bytes are written and read once at either end as well.
    exchange = sum(exchange_ms(machine, gpus, one) for one in sent)
    exchange += 2 * sum(sent[1:]) / (machine.copy_gb_s * 1e6)
    return Placed(
        table=table,
        rows=rows,
        placement=placement,
        weights_gib=weights / GIB,
        state_gib=state / GIB,
        exchanged_mib=sum(sent) / 2**20,
        reduced_mib=gradient / 2**20,
        communication_ms=reduce_ms(machine, gpus, gradient) if gradient else exchange,
    )


@dataclass(frozen=True, kw_only=True)
class HardwarePlan:
    """Needs of one workload on a number of devices."""

    machine: str
    gpus: int
    """0 for a CPU."""
    tables: list[Placed]
    memory_gib: dict[str, float]
    memory_limit_gib: float
    total_gib: float
    fits: bool
    step_ms: dict[str, float]
    total_ms: float
    exchanged_mib: float
    reduced_mib: float
    events_a_second: float
    pass_hours: float
    keeps_up: bool
    """True if a day's events take less than a day."""
    cost: float | None


def _plan_on(
    work: Workload, machine: Hardware, gpus: int, tables: list[Placed], price: float | None
) -> HardwarePlan:
    """Count the memory and time that these placements need."""
    devices, cost = max(1, gpus), machine.step
    scores, values = work.score_elements(devices), work.values * work.dim
    rows = work.item_rows_of_a_step(devices) + distinct_rows(work.users, work.batch)
    moved = (work.items + work.users) * work.dim if work.tables == "dense" else 0
    step = {
        "fixed": cost["fixed_ms"],
        "scores": (cost["score_ns"] + cost["score_dim_ns"] * work.dim / 64) * scores * 1e-6,
        "histories": (cost["event_ns"] + cost["value_ns"] * work.dim) * work.values * 1e-6,
        "most frequent item": cost["hottest_ns"] * work.hottest_events * 1e-6,
        "towers": cost["label_ns"] * work.batch * work.dim * 1e-6,
        "rows": (cost["row_ns"] * rows * work.dim + cost["table_ns"] * moved) * 1e-6,
    }
    step["waiting for launches"] = max(0.0, cost["host_ms"] - sum(step.values()))
    sharded = any(one.placement != "replicated" for one in tables)
    step["sharding"] = machine.sharded_ms if sharded else 0.0
    step["exchange of rows"] = sum(one.communication_ms for one in tables)
    step["sum of gradients"] = reduce_ms(machine, devices, FLOAT * work.dense_weights)
    busy = machine.score_bytes * scores + machine.value_bytes * values
    busy = (busy + machine.row_bytes * rows * work.dim) / GIB
    # Two of the three exchanges of a step at a time, sent and received.
    travelling = 2 * max(one.exchanged_mib for one in tables) / 1024
    weights = sum(one.weights_gib for one in tables)
    memory = {
        "weights": weights,
        "optimizer": sum(one.state_gib for one in tables),
        "counts": COUNTS * work.items / GIB,
        "towers": 4 * work.dense_weights * FLOAT / GIB,
        "step": busy,
        "exchange": travelling,
        "copy at the start": max(0.0, weights - busy - travelling) if gpus == 1 else 0.0,
    }
    limit, total = machine.memory_gib - machine.reserved_gib, sum(memory.values())
    seconds = sum(step.values()) / 1e3
    hours = work.events_per_day / (work.batch * devices) * seconds / 3600
    towers_mib = FLOAT * work.dense_weights / 2**20 if devices > 1 else 0.0
    return HardwarePlan(
        machine=machine.name,
        gpus=gpus,
        tables=tables,
        memory_gib=memory,
        memory_limit_gib=limit,
        total_gib=total,
        fits=total <= limit,
        step_ms={name: value for name, value in step.items() if value > 0},
        total_ms=1e3 * seconds,
        exchanged_mib=sum(one.exchanged_mib for one in tables),
        reduced_mib=sum(one.reduced_mib for one in tables) + towers_mib,
        events_a_second=work.batch * devices / seconds,
        pass_hours=hours,
        keeps_up=hours <= 24,
        cost=None if price is None else price * devices * hours,
    )


def plan_for(
    work: Workload, machine: Hardware, gpus: int, price_per_hour: float | None = None
) -> HardwarePlan:
    """Choose the fastest placement that fits, else the smallest one; 0 GPUs are a CPU."""
    least, most = (1, MAX_GPUS) if machine.all_to_all else (0, 0)
    if not least <= gpus <= most:
        raise ValueError(f"gpus of {machine.name} must be between {least} and {most}, got {gpus}")
    if price_per_hour is not None and not 0 <= price_per_hour < 1e6:
        raise ValueError(f"price_per_hour must be between 0 and 1e6, got {price_per_hour:g}")
    devices = max(1, gpus)
    read = {"items": work.item_rows_of_a_step(devices)}
    if work.users:
        read["users"] = distinct_rows(work.users, work.batch)
    kinds = PLACEMENTS if devices > 1 else PLACEMENTS[:1]
    each = [[place(work, machine, devices, *one, kind) for kind in kinds] for one in read.items()]
    made = [_plan_on(work, machine, gpus, list(one), price_per_hour) for one in product(*each)]
    return min(made, key=lambda one: (not one.fits, one.total_ms if one.fits else 0, one.total_gib))


def fewest_gpus(work: Workload, machine: Hardware, *, keeps_up: bool) -> HardwarePlan | None:
    """Find the fewest GPUs that hold a workload, and pass over a day's events within a day."""

    def serves(gpus: int) -> HardwarePlan | None:
        found = plan_for(work, machine, gpus)
        return found if found.fits and (found.keeps_up or not keeps_up) else None

    if not machine.all_to_all:
        return serves(0)
    sizes = [2**power for power in range(MAX_GPUS.bit_length())]
    most = next((gpus for gpus in sizes if serves(gpus)), None)
    if most is None:
        return None
    between = range(most // 2 + 1, most + 1)
    return serves(between[bisect_left(between, x=True, key=lambda gpus: bool(serves(gpus)))])
