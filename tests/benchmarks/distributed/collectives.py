"""Seconds of the exchanges between ranks by size; imported by the benchmark of ranks.

Axes: none.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
SECONDS_EACH = 0.1


def calls(kind: str, num_bytes: int, device: torch.device) -> Callable[[], None]:
    """Prepare an exchange in which each rank holds ``num_bytes`` of float32."""
    size = dist.get_world_size()
    count = max(size, num_bytes // 4 // size * size)
    whole = torch.ones(count, device=device)
    part = torch.ones(count // size, device=device)
    other = torch.empty_like(whole)

    def all_reduce() -> None:
        dist.all_reduce(other)

    def all_gather() -> None:
        dist.all_gather_into_tensor(whole, part)

    def reduce_scatter() -> None:
        if device.type == "cpu":
            # Gloo has none: what it costs there is a sum and a cut.
            dist.all_reduce(other)
        else:
            dist.reduce_scatter_tensor(part, whole)

    def all_to_all() -> None:
        dist.all_to_all_single(other, whole)

    return dict(zip(KINDS, (all_reduce, all_gather, reduce_scatter, all_to_all), strict=True))[kind]


def synchronised(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    """Mean seconds of a call, of as many as a tenth of a second holds; the slowest rank's."""
    for _ in range(3):
        call()
    begun = time.perf_counter()
    call()
    synchronised(device)
    once = torch.tensor([time.perf_counter() - begun], dtype=torch.float64)
    dist.all_reduce(once, op=dist.ReduceOp.MAX)
    repeats = max(3, min(200, int(SECONDS_EACH / max(1e-6, float(once)))))
    dist.barrier()
    begun = time.perf_counter()
    for _ in range(repeats):
        call()
    synchronised(device)
    mean = torch.tensor([(time.perf_counter() - begun) / repeats], dtype=torch.float64)
    dist.all_reduce(mean, op=dist.ReduceOp.MAX)
    return float(mean)


def measured(device: torch.device, largest: int) -> list[dict[str, float | int | str]]:
    """Time every kind at sizes from 4 KiB to ``largest`` bytes a rank."""
    sizes = [1 << power for power in range(12, 31, 2) if 1 << power <= largest]
    found: list[dict[str, float | int | str]] = []
    for kind in KINDS:
        for num_bytes in sizes:
            seconds = seconds_of(calls(kind, num_bytes, device), device)
            found.append(
                {
                    "kind": kind,
                    "bytes": num_bytes,
                    "seconds": seconds,
                    "bytes_per_second": num_bytes / seconds,
                }
            )
    return found
