"""One case of one kernel: its inputs and its check.

Inputs come in several sets, so that no cache holds what the next call reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Call = Callable[[], object]
NUM_SETS = 4


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A workload on a device, ready to run."""

    ours: Sequence[Call]
    error: Callable[[], float]
    """Distance of our result from the truth; calls our kernel anew."""
    tolerance: float


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One case of one kernel."""

    kernel: str
    name: str
    prepare: Callable[[torch.device], Prepared]


def distance(found: Tensor, truth: Tensor) -> float:
    """Norm of the difference over the norm of the truth; not a number where either is not."""
    return float((found.double() - truth.double()).norm() / truth.double().norm().clamp(min=1e-30))


def worst(found: Sequence[Tensor], truth: Sequence[Tensor]) -> float:
    """Greatest distance of several results; not a number where one is not."""
    distances = [distance(one, true) for one, true in zip(found, truth, strict=True)]
    return float(torch.tensor(distances).max())


def results(call: Callable[..., Tensor], *inputs: Tensor, backward: bool) -> list[Tensor]:
    """Call with all inputs but the last, the gradient of the result; optionally backward."""
    if not backward:
        with torch.no_grad():
            return [call(*inputs[:-1])]
    leaves = [one.detach().requires_grad_() for one in inputs[:-1]]
    out = call(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, inputs[-1])]
