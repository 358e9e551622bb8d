"""Experts one after the other: the slow truth.

Axes: B rows, K experts of each row, E experts, D width, F inner width, O output width.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def loop_over_experts(
    rows: Tensor, up: Tensor, down: Tensor, experts: Tensor, weights: Tensor
) -> Tensor:
    """Compute one expert after the other: the slow truth, [B, O]."""
    out = rows.new_zeros(len(rows), down.shape[1])
    for expert in range(len(up)):
        row, place = (experts == expert).nonzero(as_tuple=True)
        visited = functional.relu(rows[row] @ up[expert].T) @ down[expert].T
        visited = visited * weights[row, place, None].to(visited.dtype)
        out = out.index_add(0, row, visited)
    return out
