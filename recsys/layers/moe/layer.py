"""Sparse mixture of experts: a router sends each row to a few (Shazeer et al., arXiv:1701.06538).

Axes: B rows, D width, F inner width, E experts, K experts of each row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

from torch import Tensor, nn

from recsys.layers.moe.experts import Experts
from recsys.layers.moe.routing import BiasedRouter, Routing


@dataclass(frozen=True, kw_only=True)
class SparseMoeConfig:
    """Sizes of a sparse layer."""

    dim: int
    hidden_dim: int
    """F of each expert."""
    num_experts: int
    top_k: int = 2
    router_dim: int | None = None
    """Width of the router's input; None is ``dim``."""
    router: Literal["sigmoid", "softmax"] = "sigmoid"

    def __post_init__(self) -> None:
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
    """A router, and experts of which each row visits K."""

    def __init__(self, config: SparseMoeConfig) -> None:
        super().__init__()
        self.config = config
        dim, hidden_dim, num_experts = config.dim, config.hidden_dim, config.num_experts
        router_dim = config.router_dim or dim
        self.router = BiasedRouter(router_dim, num_experts, config.top_k, scores=config.router)
        self.experts = Experts(num_experts, dim, hidden_dim, dim)

    def forward(
        self, rows: Tensor, routed_by: Tensor | None = None, routing: Routing | None = None
    ) -> Mixed:
        """Combine the outputs of each row's experts.

        Args:
            rows: [B, D].
            routed_by: Input of the router, [B, router_dim]; the rows by default.
        """
        if routing is None:
            routing = cast("Routing", self.router(rows if routed_by is None else routed_by))
        return Mixed(self.experts(rows, routing.experts, routing.weights), routing)
