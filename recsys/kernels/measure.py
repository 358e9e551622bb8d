"""Time GPU code: the only place that uses Triton's timers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle

import torch


def median_ms(
    calls: Sequence[Callable[[], object]], *, warmup_ms: int = 30, ms: int = 120
) -> float:
    """Time calls that differ only in their inputs, taken in turn; median milliseconds of one.

    Several input sets keep the second-level cache from holding what the next call reads.
    Triton's timer also clears that cache before each call.
    """
    from triton.testing import do_bench

    turn = cycle(calls)
    found = do_bench(lambda: next(turn)(), warmup=warmup_ms, rep=ms, return_mode="median")
    return float(found)


def copy_rate(num_bytes: int = 1 << 32) -> float:
    """Measure the device's copy, bytes read plus bytes written, in bytes per second."""
    source = torch.randn(num_bytes // 4, device="cuda")
    target = torch.empty_like(source)
    return 2 * num_bytes / (median_ms([lambda: target.copy_(source)]) * 1e-3)


def peak_bytes(call: Callable[[], object]) -> int:
    """Measure how much more memory a call holds at its peak than before."""
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
