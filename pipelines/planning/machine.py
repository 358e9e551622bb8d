"""Measured constants of machines, from ``machines.json``.

Each entry names the benchmark results it was fitted to. Times that were not measured (networks
between hosts) are marked as assumed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

FILE = Path(__file__).parent / "machines.json"


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """Milliseconds of a two-tower's training step on one device, by what it works through."""

    host_ms: float
    """Least time of a step: what the host takes to launch it."""
    fixed_ms: float
    score_ns: float
    """For each element of the matrix of scores, forward and backward,"""
    score_dim_ns: float
    """and for each 64 products that make one."""
    event_ns: float
    """For each event of the histories,"""
    value_ns: float
    """and for each number of it;"""
    hottest_ns: float
    """for each occurrence of the most frequent item, whose gradients are summed one by one."""
    label_ns: float
    """For each number of the labels' vectors: the towers' layers."""
    row_ns: float
    """For each number of the different rows: lookup, gradient, optimizer."""
    table_ns: float
    """For each number of a table that moves whole (``dense``)."""


@dataclass(frozen=True, kw_only=True)
class ExchangeTimes:
    """Milliseconds by bytes, interpolated between measurements."""

    kib: list[float]
    ms: list[float]

    def at(self, num_bytes: float) -> float:
        """Interpolate the time of an exchange; beyond the largest, at its rate."""
        kib = num_bytes / 1024
        if kib > self.kib[-1]:
            return self.ms[-1] * kib / self.kib[-1]
        return float(np.interp(kib, self.kib, self.ms))


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One kind of device, its host, and the links between several."""

    name: str
    memory_gib: float
    reserved_gib: float
    """Taken by the driver, libraries and fragments."""
    gpus_a_host: int
    step: StepCost
    score_bytes: float
    """Memory of a step for each element of the matrix of scores,"""
    value_bytes: float
    """for each number of the history's values,"""
    row_bytes: float
    """and for each number of the different rows."""
    copy_gb_s: float
    """Bytes read and written by a copy in its memory."""
    sharded_ms: float = 0.0
    """Further milliseconds of a step with sharded tables: launches, waits."""
    all_to_all: ExchangeTimes | None = None
    """Bytes that each of two GPUs of a host exchanges, and milliseconds."""
    all_reduce: ExchangeTimes | None = None
    network_gb_s: float = 50.0
    """Rate of each GPU's link between hosts, assumed (400 Gbit/s)."""
    sources: list[str] = field(default_factory=list)

    @property
    def is_cpu(self) -> bool:
        return self.all_to_all is None


@cache
def machines() -> dict[str, Hardware]:
    """Read every machine with measured constants, by name."""
    made = {}
    for name, entry in json.loads(FILE.read_text(encoding="utf-8")).items():
        links = {
            link: ExchangeTimes(**entry.pop(link))
            for link in ("all_to_all", "all_reduce")
            if link in entry
        }
        made[name] = Hardware(name=name, **(entry | links | {"step": StepCost(**entry["step"])}))
    return made


def machine_named(name: str) -> Hardware:
    """Look a machine up."""
    found = machines().get(name.lower())
    if found is None:
        raise ValueError(
            f"no measured constants of {name!r}; there are {', '.join(sorted(machines()))}. "
            "Measure yours with python -m tests.benchmarks.planning.benchmark_steps"
        )
    return found
