"""Parts of the ranker: batches, wide layers, fields of a query, and the trunk before the heads.

A wide layer serves by oneDNN on a CPU, whose products fill wide registers. Torch multiplies float32
by MKL, which fills half of an AMD processor's 512-bit registers: [320, 128] x [128, 128] takes it
107 us of one Zen 5 core, oneDNN 56, with the same bits. A call of oneDNN's costs 10 us more, so
narrow layers go without: [224, 64] x [64, 128] takes 39 us, not 50.

Axes: B queries, k candidates of a list, M candidates of a batch (rows of a layer), I and O inputs
and outputs of a layer, F features, D width of a field, W width of all fields, T tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from recsys.data.batch import Jagged, JaggedBatch, cut_offsets
from recsys.layers.attention.target import ReadableHistory
from recsys.layers.dropout import Dropout
from recsys.layers.embedding.collection import EmbeddingBags
from recsys.layers.moe.experts import SparseMoe, SparseMoeConfig
from recsys.layers.moe.router import Routing
from recsys.models.ranker.config import RankerConfig, RankerInputs

# What torch's own compiler calls; no public function multiplies plain tensors by oneDNN.
HAS_ONEDNN = bool(torch._C._has_mkldnn) and hasattr(torch.ops.mkldnn, "_linear_pointwise")
NARROW = 128 * 128
"""Weights of a layer below which torch's own product takes less time."""


def _is_plain(rows: Tensor, weight: Tensor) -> bool:
    """Check whether to use torch's own product."""
    if weight.numel() < NARROW:
        return True
    other = rows.device.type != "cpu" or rows.dtype != torch.float32 or not HAS_ONEDNN
    return other or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu")


def wide_product(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply as ``functional.linear`` does, [M, I] and [O, I] -> [M, O]."""
    if _is_plain(rows, weight):
        return functional.linear(rows, weight, bias)
    return cast("Tensor", torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], ""))


class WideLinear(nn.Linear):
    """nn.Linear that uses ``wide_product``; the same weights and gradients."""

    def forward(self, rows: Tensor) -> Tensor:
        """Multiply rows, [M, I] -> [M, O]."""
        return wide_product(rows, self.weight, self.bias)


class CrossNetwork(nn.Module):
    """Cross layers of DCN-v2 (Wang et al. 2021, arXiv:2008.13535).

    Layers x' = x0 * (W x + b) + x, so that each adds one order of interaction.
    """

    def __init__(self, dim: int, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(WideLinear(dim, dim) for _ in range(num_layers))

    def forward(self, fields: Tensor) -> Tensor:
        """Cross the fields of each row, [M, W] -> [M, W]."""
        state = fields
        for layer in self.layers:
            state = torch.addcmul(state, fields, layer(state))
        return state


class RankingBatch(NamedTuple):
    """Queries with the candidates to rank for each."""

    queries: JaggedBatch
    """``history`` (item rows, oldest first), ``user.<name>`` and ``context.<name>``."""
    candidates: Jagged
    """Item rows of each query's candidates, M in all."""
    candidate_dense: Tensor | None = None
    """[M, F of a candidate]."""

    def to(self, device: torch.device) -> RankingBatch:
        dense = None if self.candidate_dense is None else self.candidate_dense.to(device)
        return RankingBatch(self.queries.to(device), self.candidates.to(device), dense)


class Candidates(NamedTuple):
    """Candidates of queries, in the order in which the blend merged them."""

    item_rows: Tensor
    """[B, k] int64, below 1 where the list is short."""
    features: Tensor
    """[B, k, F] float32."""

    @property
    def present(self) -> Tensor:
        """Mark the places that hold an item, [B, k]."""
        return self.item_rows > 0

    def take(self, chosen: Tensor) -> Candidates:
        return Candidates(self.item_rows[chosen], self.features[chosen])

    def batch(self, queries: JaggedBatch) -> RankingBatch:
        """Build a ranker's batch of these queries with all their candidates."""
        present = self.present
        candidates = Jagged(self.item_rows[present], cut_offsets(present.sum(1)))
        return RankingBatch(queries, candidates, self.features[present])


def check_finite(batch: RankingBatch, names: Sequence[str]) -> None:
    """Refuse dense features that are not finite, on a CPU alone: a GPU would have to wait."""
    dense = batch.candidate_dense
    if dense is not None and dense.device.type == "cpu" and (bad := ~dense.isfinite()).any():
        row, column = bad.nonzero()[0].tolist()
        raise ValueError(
            f"candidate_dense column {names[column]!r} is {float(dense[row, column])} in row "
            f"{row}; fill missing values before ranking"
        )


MIN_DEVIATION = 1e-4
"""Smallest standard deviation that features are divided by."""
MAX_STANDARDISED = 5.0
"""Standardised features are clamped to this."""


class QueryReader(NamedTuple):
    """Queries encoded for any candidates."""

    history: ReadableHistory
    fields: Tensor
    """User and context, [B, fields * D]."""


class Ranked(NamedTuple):
    """Predictions of candidates."""

    logits: Tensor
    """[M, T], of feedback on an examined item."""
    routing: Routing | None
    """Routing of a sparse trunk."""


class QueryFields(nn.Module):
    """One field of all a user's features, one of all the context's."""

    def __init__(self, config: RankerConfig, inputs: RankerInputs) -> None:
        super().__init__()
        dim = config.embedding_dim
        self.kinds = [
            (kind, [f"{kind}.{name}" for name in features])
            for kind, features in (
                ("user", inputs.user_features),
                ("context", inputs.context_features),
            )
            if features
        ]
        tables = inputs.query_tables(dim)
        self.tables = EmbeddingBags(tables, config.backend) if tables else None
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in self.kinds)

    def forward(self, queries: JaggedBatch) -> Tensor:
        """Encode queries, [B, fields * D]."""
        pooled = {} if self.tables is None else self.tables(queries)
        fields = []
        for (_, names), norm in zip(self.kinds, self.norms, strict=True):
            fields.append(norm(sum(pooled[name] for name in names)))
        if not fields:
            return queries["history"].offsets.new_zeros(queries.batch_size, 0).float()
        return torch.cat(fields, dim=1)

    def of_one(self, rows: Mapping[str, int]) -> Tensor:
        """Encode one query by the row of each of its features, [1, fields * D]."""
        if not self.kinds:
            return torch.zeros(1, 0)
        fields = []
        for (_, names), norm in zip(self.kinds, self.norms, strict=True):
            assert self.tables is not None
            fields.append(norm(sum(self.tables.one_row(name, rows[name]) for name in names)))
        return fields[0] if len(fields) == 1 else torch.cat(fields, dim=1)


class Correction(nn.Module):
    """A base score plus a linear function of a candidate's features."""

    means: Tensor
    scales: Tensor

    def __init__(self, inputs: RankerInputs, num_tasks: int) -> None:
        super().__init__()
        self.column = inputs.candidate_dense.index(inputs.base_feature)
        count = len(inputs.candidate_dense)
        self.register_buffer("means", torch.zeros(count))
        self.register_buffer("scales", torch.ones(count))
        self.weight = nn.Parameter(torch.zeros(num_tasks, count))
        self.bias = nn.Parameter(torch.zeros(num_tasks))

    @torch.no_grad()
    def fit_scale(self, features: Tensor) -> None:
        """Fit the mean and deviation of features [M, F]."""
        if not bool(features.isfinite().all()):
            raise ValueError("a feature of a candidate is not finite; fill missing values first")
        self.means.copy_(features.double().mean(0))
        self.scales.copy_(1 / features.double().std(0, correction=0).clamp(min=MIN_DEVIATION))

    def standardised(self, features: Tensor) -> Tensor:
        """Standardise and clamp features, [..., F]."""
        return ((features - self.means) * self.scales).clamp(-MAX_STANDARDISED, MAX_STANDARDISED)

    def base(self, features: Tensor) -> Tensor:
        """Select the base score, [..., 1]."""
        return features[..., self.column : self.column + 1]

    def forward(self, standardised: Tensor) -> Tensor:
        """Correct each task's logit, [..., F] -> [..., T]."""
        # No matrix product, whose bits may depend on a row's place.
        products = standardised[..., None, :] * self.weight
        return products.sum(-1) + self.bias


class Heads(nn.ModuleList):
    """A small network for each task."""

    def __init__(self, width: int, hidden_dim: int, num_tasks: int) -> None:
        super().__init__(
            nn.Sequential(nn.Linear(width, hidden_dim), nn.ReLU(), nn.Linear(hidden_dim, 1))
            for _ in range(num_tasks)
        )
        self.hidden_dim = hidden_dim

    def forward(self, rows: Tensor) -> Tensor:
        """Compute logits, [M, W] -> [M, T]."""
        layers = list(zip(self.linear(0), self.linear(2), strict=True))
        # Adapters correct layers by hooks, or in place of their forward.
        adapted = any(
            layer._forward_hooks or "forward" in vars(layer) for pair in layers for layer in pair
        )
        if adapted or torch.is_grad_enabled():
            return torch.cat([head(rows) for head in self], dim=1)
        # One wide product serves in half the time of narrow ones.
        weight = torch.cat([first.weight for first, _ in layers])
        bias = torch.cat([first.bias for first, _ in layers])
        hidden = torch.split(wide_product(rows, weight, bias).relu_(), self.hidden_dim, 1)
        return torch.cat([last(own) for (_, last), own in zip(layers, hidden, strict=True)], dim=1)

    def start_from_zero(self) -> None:
        for last in self.linear(2):
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)

    def linear(self, place: int) -> list[nn.Linear]:
        """Return one layer of every head: 0 the hidden one, 2 the last."""
        return [cast("nn.Sequential", head)[place] for head in self]  # type: ignore[misc]


class Trunk(nn.Module):
    """Residual block between the crossed fields and the heads."""

    def __init__(self, config: RankerConfig, width: int) -> None:
        super().__init__()
        # A third of a layer norm's time on a CPU.
        self.norm = nn.RMSNorm(width)
        self.dropout = Dropout(config.dropout)
        self.routed_dim = config.embedding_dim
        self.body: nn.Module
        if config.trunk == "sparse":
            self.body = SparseMoe(
                SparseMoeConfig(
                    dim=width,
                    hidden_dim=config.hidden_dim,
                    num_experts=config.num_experts,
                    top_k=config.top_k,
                    router_dim=self.routed_dim,
                )
            )
        else:
            self.body = nn.Sequential(
                WideLinear(width, config.hidden_dim),
                nn.ReLU(),
                WideLinear(config.hidden_dim, width),
            )

    def routing_of_items(self, items: Tensor) -> Routing | None:
        """Route items by their fields [N, D]; None without a router."""
        if not isinstance(self.body, SparseMoe):
            return None
        routing: Routing = self.body.router(items)
        return routing

    def forward(
        self, crossed: Tensor, fields: Tensor, routing: Routing | None = None
    ) -> tuple[Tensor, Routing | None]:
        """Transform crossed fields, [M, W] -> [M, W].

        Args:
            routing: Of ``routing_of_items``; None lets the router decide.
        """
        normed = self.norm(crossed)
        if isinstance(self.body, SparseMoe):
            mixed, routing = self.body(normed, fields[:, : self.routed_dim], routing)
        else:
            mixed = self.body(normed)
        return crossed + self.dropout(mixed), routing
