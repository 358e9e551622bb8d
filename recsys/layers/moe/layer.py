"""Mixture-of-experts layers: sparse ones that send each row to a few experts, and soft ones.

Sparse: Shazeer et al. 2017 (arXiv:1701.06538) and DeepSeekMoE's experts that every row visits
(arXiv:2401.06066). Soft: MMoE, a gate for each task over all experts (Ma et al., KDD 2018), and
PLE's extraction layer, where a task also has experts of its own (Tang et al., RecSys 2020).

Axes: B rows, D width, F inner width, O output width, E experts, K experts of each row, T tasks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from recsys.layers.moe.experts import Compute, Experts
from recsys.layers.moe.routing import BiasedRouter, NoisyRouter, Routing


@dataclass(frozen=True, kw_only=True)
class SparseMoeConfig:
    """Sizes of a sparse layer.

    Raises:
        ValueError: If a size is not positive, or more experts are chosen than there are.
    """

    dim: int
    hidden_dim: int
    """F of each expert."""
    num_experts: int
    top_k: int = 2
    num_shared_experts: int = 0
    """Experts beside the chosen ones that every row visits, each of the same size."""
    router_dim: int | None = None
    """Width of what the router reads of a row; None is ``dim``."""
    router: Literal["sigmoid", "softmax", "noisy"] = "sigmoid"
    """Scores balanced by biases (``sigmoid``, ``softmax``), or by noise and a loss."""
    bias_rate: float = 0.01
    """How far a bias moves in a step, at most."""
    dense_steps: int = 0
    """Training steps at the start in which rows visit every expert; not with ``noisy``."""
    loss_weight: float = 0.01
    """Weight of a noisy router's balancing loss."""
    certainty_weight: float = 0.0
    """Weight of an entropy by which rows choose one expert plainly; not with ``noisy``."""
    evenness_weight: float = 0.0
    """Weight of an entropy by which clusters of rows take experts of their own; the same."""
    compute: Compute = "auto"

    def __post_init__(self) -> None:
        if self.router not in ("sigmoid", "softmax", "noisy"):
            raise ValueError(f"router is 'sigmoid', 'softmax' or 'noisy', got {self.router!r}")
        if self.router == "noisy" and (self.certainty_weight or self.evenness_weight):
            raise ValueError(
                f"certainty_weight is {self.certainty_weight}, evenness_weight "
                f"{self.evenness_weight}, and a noisy router has none; set them to 0, or router to "
                "'softmax' or 'sigmoid'"
            )
        if self.num_shared_experts < 0:
            raise ValueError(f"num_shared_experts must be >= 0, got {self.num_shared_experts}")
        if not 1 <= self.top_k <= self.num_experts:
            raise ValueError(
                f"top_k must be in [1, num_experts = {self.num_experts}], got {self.top_k}"
            )


class Mixed(NamedTuple):
    """What a sparse layer gives."""

    output: Tensor
    """[B, D]."""
    routing: Routing


class SparseMoe(nn.Module):
    """A router, experts of which each row visits K, and experts that every row visits."""

    def __init__(self, config: SparseMoeConfig) -> None:
        super().__init__()
        self.config = config
        dim, hidden_dim, num_experts = config.dim, config.hidden_dim, config.num_experts
        router_dim = config.router_dim or dim
        self.router: BiasedRouter | NoisyRouter
        if config.router == "noisy":
            self.router = NoisyRouter(
                router_dim, num_experts, config.top_k, loss_weight=config.loss_weight
            )
        else:
            self.router = BiasedRouter(
                router_dim,
                num_experts,
                config.top_k,
                scores=config.router,
                bias_rate=config.bias_rate,
                dense_steps=config.dense_steps,
                certainty_weight=config.certainty_weight,
                evenness_weight=config.evenness_weight,
            )
        self.experts = Experts(num_experts, dim, hidden_dim, dim, compute=config.compute)
        shared_dim = config.num_shared_experts * hidden_dim
        self.shared = (
            nn.Sequential(nn.Linear(dim, shared_dim), nn.ReLU(), nn.Linear(shared_dim, dim))
            if shared_dim
            else None
        )

    def forward(
        self, rows: Tensor, routed_by: Tensor | None = None, routing: Routing | None = None
    ) -> Mixed:
        """Mix what each row's experts say.

        Args:
            rows: [B, D].
            routed_by: What the router reads of each row, [B, router_dim]; the rows themselves by
                default.
            routing: Where rows go; by default the router says.
        """
        if routing is None:
            routing = cast("Routing", self.router(rows if routed_by is None else routed_by))
        output: Tensor = self.experts(rows, routing.experts, routing.weights)
        if self.shared is not None:
            output = output + self.shared(rows)
        return Mixed(output, routing)


class SoftMoe(nn.Module):
    """Every row visits every expert; each task weighs them by a gate of its own.

    Args:
        dim: D, in and out.
        hidden_dim: F of each expert.
        num_experts: Experts that all tasks share.
        num_task_experts: Experts that only their task sees (PLE); 0 is MMoE.
    """

    def __init__(
        self,
        dim: int,
        hidden_dim: int,
        *,
        num_experts: int,
        num_tasks: int,
        num_task_experts: int = 0,
    ) -> None:
        super().__init__()
        if num_experts < 0 or num_task_experts < 0 or num_experts + num_task_experts < 1:
            raise ValueError(
                "a task needs at least one expert, got "
                f"num_experts = {num_experts} and num_task_experts = {num_task_experts}"
            )
        total = num_experts + num_tasks * num_task_experts
        self.num_tasks, self.num_experts = num_tasks, total
        self.up = nn.Linear(dim, total * hidden_dim, bias=False)
        self.down = nn.Parameter(torch.empty(total, hidden_dim, dim))
        nn.init.normal_(self.up.weight, std=math.sqrt(2 / dim))
        nn.init.normal_(self.down, std=1 / math.sqrt(hidden_dim))
        self.gates = nn.Linear(dim, num_tasks * total, bias=False)
        owner = torch.arange(num_tasks).repeat_interleave(num_task_experts)
        owner = torch.cat([torch.full((num_experts,), -1), owner])  # [E]
        hidden = (owner[None] >= 0) & (owner[None] != torch.arange(num_tasks)[:, None])
        self.hidden: Tensor
        """[T, E], experts that a task does not see."""
        self.register_buffer("hidden", hidden, persistent=False)

    def gate_weights(self, rows: Tensor) -> Tensor:
        """Weigh the experts for each task, rows sum to 1, [B, D] -> [B, T, E]."""
        logits: Tensor = self.gates(rows).view(-1, self.num_tasks, self.num_experts).float()
        return logits.masked_fill(self.hidden, -torch.inf).softmax(2)

    def forward(self, rows: Tensor) -> Tensor:
        """Mix the experts for each task, [B, D] -> [T, B, D]."""
        inner = functional.relu(self.up(rows))
        inner = inner.view(len(rows), *self.down.shape[:2])  # [B, E, F]
        outputs = torch.bmm(inner.transpose(0, 1), self.down.to(inner.dtype))  # [E, B, D]
        weights = self.gate_weights(rows).to(outputs.dtype)
        # Per row [T, E] x [E, D].
        mixed: Tensor = torch.bmm(weights, outputs.transpose(0, 1))
        return mixed.transpose(0, 1)
