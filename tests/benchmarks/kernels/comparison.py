"""What the benchmarks of kernels share: errors, times of a step, rows of a peer."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tests.benchmarks.harness import Row
from tests.benchmarks.kernels.measure import median_ms


class StepTimes(NamedTuple):
    """Milliseconds of a forward and of both, and bytes that both add at their peak."""

    forward: float
    both: float
    peak: int


def peak_bytes(call: Callable[[], object]) -> int:
    """Measure how much more memory a call holds at its peak than before."""
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def largest_error(found: Sequence[Tensor], truth: Sequence[Tensor]) -> float:
    """Largest difference of results and gradients, each by its largest true value."""
    return max(
        float((a.detach().double() - b.detach()).abs().max() / b.detach().abs().max())
        for a, b in zip(found, truth, strict=True)
    )


def captured(call: Callable[[], object]) -> Callable[[], object]:
    """Capture a call as a graph, which is what a training step is; the host's time is left out."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def step_times(forward: Callable[[], Tensor], leaves: list[Tensor], grad: Tensor) -> StepTimes:
    def alone() -> None:
        with torch.no_grad():
            forward()

    def both() -> None:
        torch.autograd.grad(forward(), leaves, grad)

    times = (median_ms([captured(one)]) for one in (alone, both))
    return StepTimes(*times, peak_bytes(both))


def beside_peer(
    name: str, ms: float, peer: str, peer_ms: float | None, min_ratio: float | None = None
) -> Row:
    """Milliseconds beside a peer's, or alone where it has none."""
    return Row(
        name=name,
        value=ms,
        unit="ms",
        peer=peer if peer_ms else None,
        peer_value=peer_ms or None,
        min_ratio=min_ratio,
    )


def error_row(case: str, error: float, limit: float, against: str = "float64") -> Row:
    name = f"{case}: worst error against {against}"
    return Row(name=name, value=error, goal=f"< {limit:g}", met=error < limit)


def free_memory() -> None:
    """Give back what the last case left on the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
