"""Experts one after the other, the slow truth, and trunks of equal cost to compare.

Axes: B rows, K experts of each row, E experts, D width, F inner width, O output width.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor
from torch.nn import functional

from recsys.models.ranker.config import RankerConfig, RankerInputs, Trunk, count_flops


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


def at_equal_compute(config: RankerConfig, inputs: RankerInputs, trunk: Trunk) -> RankerConfig:
    """Configure another trunk at the closest cost of a candidate.

    A dense trunk has one network as wide as the experts' cost allows; a shared bottom has one of
    the size of an expert and spends the rest in its heads.
    """
    target = count_flops(config, inputs)["total"]
    other = replace(config, trunk=trunk)
    if trunk == config.trunk:
        return other
    grows = "head_dim" if trunk == "shared_bottom" else "hidden_dim"

    def cost(size: int) -> int:
        return count_flops(replace(other, **{grows: size}), inputs)["total"]  # type: ignore[arg-type]

    size = 1 + round((target - cost(1)) / (cost(2) - cost(1)))
    return replace(other, **{grows: size})  # type: ignore[arg-type]
