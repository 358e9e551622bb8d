"""The machine that a plan has to fit: processors, memory, and how fast it multiplies."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from pipelines.engine.memory import GIB, free_memory
from recsys.fitting.spec import device_named
from serving.settings import usable_cpus

SIZE = 1_024
"""Rows and columns of the matrices that are multiplied."""
SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What trainings run on."""

    device: str
    """``cpu``, or the name of a GPU."""
    num_cpus: int
    memory_bytes: int
    """What this process may still take."""
    flops: float
    """Floating-point operations a second of a float32 matrix product, measured."""

    @property
    def has_gpu(self) -> bool:
        return self.device != "cpu"

    def words(self) -> str:
        """Say it in a line."""
        parts = [f"{self.num_cpus} CPUs", f"{self.memory_bytes / GIB:.1f} GiB of free memory"]
        if self.has_gpu:
            parts.insert(0, self.device)
        return ", ".join([*parts, f"{self.flops / 1e9:,.0f} GFLOP/s measured"])


def this_machine(device: str = "auto") -> Machine:
    """Look at this machine; takes a quarter of a second.

    Args:
        device: As the configuration names it.
    """
    place = device_named(device)
    return Machine(
        device="cpu" if place.type == "cpu" else torch.cuda.get_device_name(place),
        num_cpus=usable_cpus(),
        memory_bytes=free_memory(),
        flops=measured_flops(place),
    )


def measured_flops(device: torch.device) -> float:
    """Multiply matrices for a fifth of a second."""
    left = torch.randn(SIZE, SIZE, device=device)
    right = left.T.contiguous()

    def multiply() -> None:
        torch.mm(left, right)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    multiply()
    begin, times = time.perf_counter(), 0
    while (passed := time.perf_counter() - begin) < SECONDS:
        multiply()
        times += 1
    return 2 * SIZE**3 * times / passed
