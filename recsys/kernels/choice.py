"""Which kernels run: on a CUDA device with Triton all of them, less those that are switched off.

``RECSYS_KERNELS_OFF`` is the one switch: names separated by commas, or ``all``. It is read when the
package is imported, and processes that are started inherit it. What stands in for a kernel computes
the same within the tolerances of its tests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor

SWITCH = "RECSYS_KERNELS_OFF"
KERNELS = {
    "embedding_bag": "torch's embedding bags",
    "hstu_attention": "padded attention in torch",
    "routed_experts": "batched products in torch",
    "softmax_rows": "a pass over memory for each operation of a softmax",
    "topk_search": "torch's product and topk",
    "captured_search": "a launch for each operation of a beam search",
    "captured_step": "a launch for each operation of a training step",
}
"""By kernel, what runs without it."""


class Use(NamedTuple):
    """A kernel, if it runs, and why not."""

    kernel: str
    runs: bool
    reason: str
    """Why it does not run, and what does; empty where it runs."""


def parsed_switch(text: str) -> frozenset[str]:
    """Read the names of kernels that are off."""
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    if "all" in names:
        return frozenset(KERNELS)
    if unknown := sorted(names - KERNELS.keys()):
        raise ValueError(
            f"{SWITCH} names {', '.join(unknown)}, which is no kernel; there are "
            f"{', '.join(KERNELS)}, and all"
        )
    return names


_off = parsed_switch(os.environ.get(SWITCH, ""))


def is_on(kernel: str) -> bool:
    """Return whether a kernel may run."""
    return kernel not in _off


def runs(kernel: str, tensor: Tensor) -> bool:
    """Return whether a kernel runs on a tensor: on CUDA, or in Triton's interpreter."""
    return (tensor.is_cuda or interpreting()) and kernel not in _off and has_triton()


@cache
def interpreting() -> bool:
    """Return whether Triton's interpreter runs the kernels, on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@cache
def has_triton() -> bool:
    """Return whether kernels can be compiled here."""
    return find_spec("triton") is not None


@contextmanager
def without(*kernels: str) -> Iterator[None]:
    """Switch kernels off inside, for comparison; ``all`` is every one."""
    global _off
    before, _off = _off, _off | parsed_switch(",".join(kernels))
    try:
        yield
    finally:
        _off = before


def uses(device: torch.device) -> list[Use]:
    """Return of every kernel whether it runs on a device, and why not."""
    found = []
    for kernel, instead in KERNELS.items():
        reason = ""
        if kernel in _off:
            reason = f"{SWITCH} names it"
        elif device.type != "cuda":
            reason = f"the device is {device.type}"
        elif not kernel.startswith("captured") and not has_triton():
            reason = "Triton is not installed"
        found.append(Use(kernel, not reason, f"{reason}: {instead}" if reason else ""))
    return found


def summary(device: torch.device) -> str:
    """Return in one line which kernels run on a device and why others do not."""
    found = uses(device)
    running = [use.kernel for use in found if use.runs]
    reasons: dict[str, list[str]] = {}
    for use in found:
        if not use.runs:
            reasons.setdefault(use.reason.partition(":")[0], []).append(use.kernel)
    parts = [f"kernels on {device.type}: {', '.join(running) or 'none'}"]
    parts += [f"without {', '.join(names)} ({reason})" for reason, names in reasons.items()]
    return "; ".join(parts)
