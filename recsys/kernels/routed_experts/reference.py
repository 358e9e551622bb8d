"""The truth beside the kernels: the same steps in plain PyTorch, one expert after the other.

Axes: B rows, K visits of each row, S = B * K slots (visits in the order in which experts take
them), E experts, T tiles, D width, F inner width, O output width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Plan(NamedTuple):
    """The order in which experts take visits, all int32; no number of it is read by the host."""

    row_of_slot: Tensor
    """[S]."""
    slot_of: Tensor
    """[B * K], where each visit went."""
    ends: Tensor
    """[E], where each expert's slots end."""
    tiles: Tensor
    """[1 + 3 T]: how many tiles there are, then each one's expert, first slot and the end of the
    expert's slots. A tile holds up to ``tile_rows`` slots of one expert."""
    tile_rows: int = 128


def most_tiles(num_slots: int, num_experts: int, tile_rows: int) -> int:
    """As many tiles as there can be, T."""
    return max(1, num_slots // tile_rows + num_experts)


def plan_visits(experts: Tensor, num_experts: int, tile_rows: int) -> Plan:
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
    return Plan(
        (order // experts.shape[1]).int(),
        slot_of.int(),
        ends.int(),
        torch.cat([tiles.sum()[None], listed.flatten()]).int(),
        tile_rows,
    )


def products(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Multiply each expert's slots by its weights, [S, C] and [E, C, N] -> [S, N]."""
    sizes = ends.diff(prepend=ends.new_zeros(1)).tolist()
    parts = [own @ one for own, one in zip(torch.split(rows, sizes), weight, strict=True)]
    return torch.cat(parts)


def weight_gradients(left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    """Sum left^T right over each expert's slots, [S, M] and [S, N] -> [E, M, N]."""
    sizes = ends.diff(prepend=ends.new_zeros(1)).tolist()
    parts = zip(torch.split(left, sizes), torch.split(right, sizes), strict=True)
    return torch.stack([a.T @ b for a, b in parts])


def forward(
    rows: Tensor, up: Tensor, down: Tensor, plan: Plan, weights: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What experts say: each row's sum [B, O], and of slots rows, inner numbers and outputs.

    Args:
        rows: [B, D].
        up: [E, F, D].
        down: [E, O, F].
        weights: What each visit counts, [B, K].
    """
    own = rows[plan.row_of_slot.long()]  # [S, D]
    hidden = products(own, up.mT, plan.ends).relu()
    outputs = products(hidden, down.mT, plan.ends)
    visits = outputs[plan.slot_of.long()].view(*weights.shape, outputs.shape[1])
    wide = torch.promote_types(weights.dtype, outputs.dtype)
    out = (visits.to(wide) * weights[:, :, None].to(wide)).sum(1)
    return out.to(rows.dtype), own, hidden, outputs


def backward(
    grad: Tensor,
    up: Tensor,
    down: Tensor,
    plan: Plan,
    weights: Tensor,
    made: tuple[Tensor, Tensor, Tensor],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of rows, up, down and weights, from what ``forward`` made of slots."""
    own, hidden, outputs = made
    slot_of, row_of_slot = plan.slot_of.long(), plan.row_of_slot.long()
    visits = outputs[slot_of].view(*weights.shape, outputs.shape[1])
    of_weights = (visits.float() * grad[:, None].float()).sum(2).to(weights.dtype)
    share = torch.empty_like(weights.flatten()).scatter_(0, slot_of, weights.flatten())  # [S]
    of_slots = (grad[row_of_slot].to(share.dtype) * share[:, None]).to(grad.dtype)
    of_hidden = products(of_slots, down, plan.ends) * (hidden > 0)
    of_down = weight_gradients(of_slots, hidden, plan.ends)
    of_up = weight_gradients(of_hidden, own, plan.ends)
    back = products(of_hidden, up, plan.ends)[slot_of].view(*weights.shape, own.shape[1])
    return back.sum(1), of_up, of_down, of_weights


def scores_of(logits: Tensor, by_softmax: bool) -> Tensor:
    """Scores of all experts, [B, E]."""
    return logits.softmax(1) if by_softmax else logits.sigmoid()


def weigh(scores: Tensor, experts: Tensor) -> Tensor:
    """What chosen experts count: their share of the chosen scores, a single one's of all."""
    chosen = scores.gather(1, experts)  # [B, K]
    parts = scores if experts.shape[1] == 1 else chosen
    return chosen / (parts.sum(1, keepdim=True) + 1e-9)


def route(
    rows: Tensor, weight: Tensor, bias: Tensor, top_k: int, by_softmax: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Score and choose: logits [B, E], experts [B, K], the best first, and their weights [B, K]."""
    logits = rows.float() @ weight.T
    scores = scores_of(logits, by_softmax)
    experts = torch.topk(scores + bias, top_k, dim=1).indices
    return logits, experts, weigh(scores, experts)


def route_backward(
    rows: Tensor,
    weight: Tensor,
    made: tuple[Tensor, Tensor, Tensor],
    grad_logits: Tensor | None,
    grad_weights: Tensor,
    by_softmax: bool,
) -> tuple[Tensor, Tensor]:
    """Gradients of rows and weight, from those of the logits and of what experts weigh."""
    logits, experts, weights = made
    scores = scores_of(logits, by_softmax)
    chosen = scores.gather(1, experts)
    parts = scores if experts.shape[1] == 1 else chosen
    along = (grad_weights * weights).sum(1, keepdim=True)
    # Each weight is a chosen score over the sum of parts.
    of_scores = torch.zeros_like(scores).scatter_(1, experts, grad_weights)
    counted = torch.zeros_like(scores).scatter_(1, experts, 1.0)
    counted = torch.ones_like(scores) if experts.shape[1] == 1 else counted
    of_scores = (of_scores - along * counted) / (parts.sum(1, keepdim=True) + 1e-9)
    if by_softmax:
        of_logits = scores * (of_scores - (of_scores * scores).sum(1, keepdim=True))
    else:
        of_logits = of_scores * scores * (1 - scores)
    if grad_logits is not None:
        of_logits = of_logits + grad_logits
    return (of_logits @ weight).to(rows.dtype), of_logits.T @ rows.float()
