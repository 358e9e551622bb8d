"""The order of visits and the scores of a router in plain torch.

Axes: B rows, K visits of each row, E experts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recsys.kernels.routed_experts.triton_rows import VisitPlan, most_tiles


def plan_visits(experts: Tensor, num_experts: int, tile_rows: int) -> VisitPlan:
    """Sort visits by expert, first come first.

    Args:
        experts: Chosen experts, [B, K].
    """
    flat = experts.flatten()
    order = torch.sort(flat, stable=True).indices  # [S]
    slot_of = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)).to(order))
    counts = torch.bincount(flat, minlength=num_experts)  # [E]
    ends = counts.cumsum(0)
    tiles = (counts + tile_rows - 1) // tile_rows  # [E]
    expert = torch.repeat_interleave(tiles)  # [used tiles]
    number = torch.arange(len(expert)).to(expert) - (tiles.cumsum(0) - tiles)[expert]
    listed = flat.new_zeros(3, most_tiles(len(flat), num_experts, tile_rows))
    listed[:, : len(expert)] = torch.stack(
        [expert, (ends - counts)[expert] + number * tile_rows, ends[expert]]
    )
    return VisitPlan(
        (order // experts.shape[1]).int(),
        slot_of.int(),
        ends.int(),
        torch.cat([tiles.sum()[None], listed.flatten()]).int(),
        tile_rows,
    )


def score_candidates(logits: Tensor, by_softmax: bool) -> Tensor:
    """Scores of all experts, [B, E]."""
    return logits.softmax(1) if by_softmax else logits.sigmoid()


def weigh(scores: Tensor, experts: Tensor) -> Tensor:
    """What chosen experts count: their share of the chosen scores, a single one's of all."""
    chosen = scores.gather(1, experts)  # [B, K]
    parts = scores if experts.shape[1] == 1 else chosen
    return chosen / (parts.sum(1, keepdim=True) + 1e-9)
