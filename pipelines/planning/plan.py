"""Hardware that the two-tower of a shop needs: memory of each device, time of a step and of a pass.

Pure arithmetic on the measured constants of ``machines.json``. Tables are ``replicated`` (gradients
are summed over GPUs) if they fit on each GPU, else ``row-wise`` (a GPU has every G-th row and sends
its part of every bag). Ids follow Zipf's law. What GPUs send each other takes memory here and no
time: it was not measured.

Axes: G GPUs, B labels of a GPU's batch, C uniform negatives, M history values, D width.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pipelines.engine.memory import GIB

MACHINES = Path(__file__).parent / "machines.json"
FLOAT, ID = 4, 8
"""Bytes of a weight and of an id."""
COUNTS = 16
"""Bytes of an item's counts on every GPU: 8 kept, 8 while a step sums them."""
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
    """Measured constants of one kind of device."""

    name: str
    memory_gib: float
    reserved_gib: float
    """Taken by the driver, libraries and fragments."""
    max_gpus: int
    """0 for a CPU."""
    step: Mapping[str, float]
    """Milliseconds of a step, and nanoseconds by number of scores, history values, rows, ..."""
    score_bytes: float
    value_bytes: float
    row_bytes: float
    """Memory of a step by score, number of the history's values, number of the rows."""
    sharded_ms: float = 0.0
    """Further milliseconds of a step with sharded tables."""
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


@dataclass(frozen=True, kw_only=True)
class HardwarePlan:
    """Needs of one workload on a number of devices."""

    machine: str
    gpus: int
    """0 for a CPU."""
    placement: dict[str, str]
    """By table: ``replicated`` (each GPU has all rows) or ``row-wise`` (every G-th row)."""
    memory_gib: dict[str, float]
    memory_limit_gib: float
    total_gib: float
    fits: bool
    step_ms: dict[str, float]
    total_ms: float
    """Time of a step on one device; what GPUs send each other comes on top."""
    events_a_second: float
    """Rate of all devices, if they need not wait for each other."""
    pass_hours: float


def time_step(work: Workload, machine: Hardware, devices: int, parts: int) -> dict[str, float]:
    """Time the parts of a step on one of these devices, ms."""
    cost, scores = machine.step, work.score_elements(devices)
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
    step["sharding"] = machine.sharded_ms if parts > 1 else 0.0
    return {name: value for name, value in step.items() if value > 0}


def count_memory(work: Workload, machine: Hardware, devices: int, parts: int) -> dict[str, float]:
    """Count the memory of one device whose tables are split into a number of parts, GiB."""
    read = work.item_rows_of_a_step(devices), distinct_rows(work.users, work.batch)
    scores, values = work.score_elements(devices), work.values * work.dim
    busy = machine.score_bytes * scores + machine.value_bytes * values
    busy = (busy + machine.row_bytes * sum(read) * work.dim) / GIB
    weights = (work.items + work.users) * work.dim * FLOAT / GIB
    gradients = weights if devices > 1 and parts == 1 else 0.0
    state = weights * (1 + 1 / work.dim if work.tables == "rowwise_adam" else 2.0)
    # Two of the three exchanges of a step at a time (ids, rows, gradients), sent and received.
    sent = max(read) * (ID / parts + 2 * work.dim * FLOAT) * (parts - 1)
    travelling = 2 * sent / GIB
    kept = weights / parts + gradients
    return {
        "weights": kept,
        "optimizer": state / parts,
        "counts": COUNTS * work.items / GIB,
        "towers": 4 * work.dense_weights * FLOAT / GIB,
        "step": busy,
        "exchange": travelling,
        "copy at the start": max(0.0, kept - busy - travelling)
        if machine.max_gpus and devices == 1
        else 0.0,
    }


def plan_for(work: Workload, machine: Hardware, gpus: int) -> HardwarePlan:
    """Count memory and time; tables are split over the GPUs if they do not fit on each."""
    least = min(1, machine.max_gpus)
    if not least <= gpus <= machine.max_gpus:
        raise ValueError(
            f"gpus of {machine.name} must be between {least} and {machine.max_gpus}, got {gpus}"
        )
    devices, limit = max(1, gpus), machine.memory_gib - machine.reserved_gib
    parts, memory = 1, count_memory(work, machine, devices, 1)
    if sum(memory.values()) > limit:
        parts, memory = devices, count_memory(work, machine, devices, devices)
    step, total = time_step(work, machine, devices, parts), sum(memory.values())
    rate = 1e3 * work.batch * devices / sum(step.values())
    placement = "row-wise" if parts > 1 else "replicated"
    return HardwarePlan(
        machine=machine.name,
        gpus=gpus,
        placement=dict.fromkeys(["items", "users"] if work.users else ["items"], placement),
        memory_gib=memory,
        memory_limit_gib=limit,
        total_gib=total,
        fits=total <= limit,
        step_ms=step,
        total_ms=sum(step.values()),
        events_a_second=rate,
        pass_hours=work.events_per_day / rate / 3600,
    )


def fewest_gpus(work: Workload, machine: Hardware) -> int | None:
    """Find the fewest devices that hold a workload, a power of two; None if none do."""
    sizes = [2**power for power in range(machine.max_gpus.bit_length())] or [0]
    return next((gpus for gpus in sizes if plan_for(work, machine, gpus).fits), None)
