"""Sparse mixture of experts: a router sends each row to a few experts.

Shazeer et al. 2017 (arXiv:1701.06538), with the shared experts of DeepSeekMoE (arXiv:2401.06066).

Axes: B rows, D width, F inner width, E experts, K experts of each row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

from torch import Tensor, nn

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
    """Additional experts of the same size that every row visits."""
    router_dim: int | None = None
    """Width of the router's input; None is ``dim``."""
    router: Literal["sigmoid", "softmax", "noisy"] = "sigmoid"
    """Balanced by biases (``sigmoid``, ``softmax``), or by noise and a loss."""
    bias_rate: float = 0.01
    """How far a bias moves in a step, at most."""
    dense_steps: int = 0
    """First training steps, in which rows visit every expert; not with ``noisy``."""
    loss_weight: float = 0.01
    """Weight of a noisy router's balancing loss."""
    certainty_weight: float = 0.0
    """Weight of the entropy of a row's routing; not with ``noisy``."""
    evenness_weight: float = 0.0
    """Weight of the negative entropy of mean routing; not with ``noisy``."""
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
    """Output of a sparse layer."""

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
        """Combine the outputs of each row's experts.

        Args:
            rows: [B, D].
            routed_by: Input of the router, [B, router_dim]; the rows by default.
            routing: Of the rows; None lets the router decide.
        """
        if routing is None:
            routing = cast("Routing", self.router(rows if routed_by is None else routed_by))
        output: Tensor = self.experts(rows, routing.experts, routing.weights)
        if self.shared is not None:
            output = output + self.shared(rows)
        return Mixed(output, routing)
