"""Time and trace kernels: the only place that uses Triton's timers and its profiler, Proton."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import Any

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


def trace(call: Callable[[], object], path: Path, *, times: int = 10) -> dict[str, float]:
    """Record which GPU kernels a call launches, with Proton; write its tree to ``path``.

    Returns:
        Mean milliseconds a call spends in each GPU kernel, the longest first.

    Raises:
        ValueError: If Proton is not there or cannot record on this machine.
    """
    if not find_spec("triton.profiler"):
        raise ValueError("Proton, Triton's profiler, is not installed; install triton >= 3.6")
    from triton import profiler

    call()
    torch.cuda.synchronize()
    try:
        session = profiler.start(str(path.with_suffix("")), hook="triton")
        for _ in range(times):
            call()
        torch.cuda.synchronize()
        profiler.finalize(session)
        tree = json.loads(path.with_suffix(".hatchet").read_text(encoding="utf-8"))
    except (OSError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"Proton cannot record here: {error!r}; it needs the driver's CUPTI library and leave "
            "to use it"
        ) from error
    found: dict[str, float] = {}
    for name, nanoseconds in leaves(tree):
        found[name] = found.get(name, 0.0) + nanoseconds / times / 1e6
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def leaves(nodes: list[dict[str, Any]]) -> Iterator[tuple[str, float]]:
    """Walk Proton's tree: name and nanoseconds of what has a time and no children."""
    for node in nodes:
        if not isinstance(node, dict) or "frame" not in node:
            continue
        below = node.get("children") or []
        own = node.get("metrics", {}).get("time (ns)")
        if below:
            yield from leaves(below)
        elif own is not None:
            yield node["frame"]["name"], float(own)
