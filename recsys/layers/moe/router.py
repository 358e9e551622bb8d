"""Routers of a sparse mixture: which experts a row visits, and how evenly.

A router sends each row to a few (Shazeer et al., arXiv:1701.06538), by a softmax and top-k whose
biases balance without a loss: Wang et al. 2024, arXiv:2408.15664, as in DeepSeek-V3,
arXiv:2412.19437.

Axes: B rows, K experts of each row, E experts, D width. A name ends in its axes
where they change often: ``scores_BE``.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, distributed, nn

from recsys.kernels.routed_experts.op import can_route, count_visits, route

BIAS_RATE = 0.01
"""Largest move of an expert's bias in a training step."""
SETTLED_SHARE = 0.01
"""Share of the first move that is left for the last one of a settling."""


def without_autocast(device: str) -> AbstractContextManager[None]:
    """Leave types as they are; costs a CPU nothing where there is no autocast to leave."""
    if torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


class Routing(NamedTuple):
    """Experts and weights of each row."""

    experts: Tensor
    """[B, K] int64, the best expert first."""
    weights: Tensor
    """[B, K] float32, >= 0; what each chosen expert's output is multiplied by."""

    def of_rows(self, rows: Tensor) -> Routing:
        """Take some rows, [M] of [B]."""
        return Routing(self.experts.index_select(0, rows), self.weights.index_select(0, rows))


class ExpertUse(NamedTuple):
    """How evenly rows were spread over the experts of one layer."""

    load: Tensor
    """[E] float32, share of the choices that each expert got; sums to 1."""
    entropy: float
    """Entropy of the load over log(E): 1 is even, 0 is one expert for all."""
    max_violation: float
    """MaxVio of arXiv:2408.15664: the largest load over the mean load, minus 1; 0 is even."""
    dead_experts: int
    """Experts that no row chose."""


def expert_use(experts: Tensor, num_experts: int) -> ExpertUse:
    """Count how often each expert was chosen.

    Args:
        experts: Chosen experts of any rows, [B, K].
    """
    if not experts.numel():
        raise ValueError("the use of experts needs at least one routed row, got none")
    counts = torch.bincount(experts.flatten(), minlength=num_experts).double()  # [E]
    load = counts / counts.sum()
    entropy = -torch.special.xlogy(load, load).sum() / math.log(max(2, num_experts))
    return ExpertUse(
        load=load.float(),
        entropy=float(entropy),
        max_violation=float(load.max() * num_experts - 1),
        dead_experts=int((counts == 0).sum()),
    )


class BiasedRouter(nn.Module):
    """Chooses by score plus a bias that rises while an expert gets too few rows.

    The bias takes part in the choice and not in the weight, so balance costs no gradient. It moves
    once a training step, by ``BIAS_RATE`` times the lack of rows over the mean load, at most
    ``BIAS_RATE``: the published sign of the lack, but without its swinging about the balance. Where
    training batches differ from served ones, set ``moves_by_batch`` to False and ``settle`` it.
    """

    def __init__(self, dim: int, num_experts: int, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.moves_by_batch = True
        """True if a training step moves biases."""
        self.scores = nn.Linear(dim, num_experts, bias=False)
        self.bias: Tensor
        self.register_buffer("bias", torch.zeros(num_experts))
        self.steps: Tensor
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, rows: Tensor) -> Routing:
        """Route rows, [B, D]."""
        if can_route(rows, len(self.bias), self.top_k):
            _, experts_BK, weights_BK = route(rows, self.scores.weight, self.bias, self.top_k)
        else:
            scores_BE = self._scored(rows)
            experts_BK = best_experts(scores_BE.detach() + self.bias, self.top_k)
            chosen_BK = scores_BE.gather(1, experts_BK)
            # A single expert's share of the chosen would always be 1 and teach the router nothing.
            parts = scores_BE if self.top_k == 1 else chosen_BK
            weights_BK = chosen_BK / (parts.sum(1, keepdim=True) + 1e-9)
        if self.training:
            self.steps += 1
            if self.moves_by_batch:
                self._move_bias(experts_BK)
        return Routing(experts_BK, weights_BK)

    def _scored(self, rows: Tensor) -> Tensor:
        """Compute scores, [B, E]."""
        with without_autocast(rows.device.type):
            logits_BE: Tensor = self.scores(rows.float())
        # Down the columns of the transpose: of a few experts, seven times faster on a CPU.
        return logits_BE.T.softmax(0).T

    @torch.no_grad()
    def settle(
        self, rows: Tensor, counts: Tensor, *, num_rounds: int = 100, rate: float = 0.05
    ) -> None:
        """Move biases until rows, each as often as counted, are spread evenly.

        Args:
            rows: What is served, [B, D], on the router's device.
            counts: How often, [B], not all 0.
        """
        scores_BE = self._scored(rows)
        shares_B = counts.float() / counts.sum()
        bias_E, kept_E = self.bias.clone(), self.bias.clone()
        least = torch.full((), torch.inf, device=rows.device)
        for number in range(num_rounds):
            experts_BK = best_experts(scores_BE + bias_E, self.top_k)
            chosen_BE = torch.zeros_like(scores_BE).scatter_(1, experts_BK, 1.0)
            # Over the mean load; a product, since sums by expert add in any order on a GPU.
            load_E = (shares_B @ chosen_BE) * (len(bias_E) / self.top_k)
            kept_E = torch.where(load_E.max() < least, bias_E, kept_E)
            least = torch.minimum(load_E.max(), least)
            most = rate * SETTLED_SHARE ** (number / num_rounds)
            bias_E = bias_E + most * (1 - load_E).clamp(-1, 1)
        self.bias.copy_(kept_E - kept_E.mean())

    @torch.no_grad()
    def _move_bias(self, experts: Tensor) -> None:
        # As numbers of the device, which is not waited for.
        counts = count_visits(experts, len(self.bias)).float()
        if distributed.is_available() and distributed.is_initialized():
            distributed.all_reduce(counts)
        lack = 1 - counts * (len(self.bias) / counts.sum().clamp(min=1))
        self.bias += BIAS_RATE * lack.clamp(-1, 1)
        # Only differences matter; left alone the mean would drift.
        self.bias -= self.bias.mean()


def best_experts(scores_BE: Tensor, top_k: int) -> Tensor:
    """Choose the experts of the highest scores, the best first, [B, K]."""
    if not scores_BE.is_cuda or top_k > 2:
        return torch.topk(scores_BE, top_k, dim=1).indices
    # A GPU's top-k sorts each row; one or two maxima are found in a pass each.
    best = scores_BE.argmax(1, keepdim=True)
    if top_k == 1:
        return best
    others_BE = scores_BE.scatter(1, best, -torch.inf)
    return torch.cat([best, others_BE.argmax(1, keepdim=True)], dim=1)
