"""Settings of the ranker."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from recsys.data.bounds import check_bounds, check_choices
from recsys.layers.embedding.tables import Backend
from recsys.models.item_tower import FeatureSizes

Trunk = Literal["sparse", "dense", "auto"]


@dataclass(frozen=True, kw_only=True)
class RankerInputs(FeatureSizes):
    """Sizes of the ranker's inputs, and the tasks it predicts (row 0 of every id included)."""

    tasks: tuple[str, ...] = ("click",)
    candidate_dense: tuple[str, ...] = ()
    """Names of the dense features of a candidate, such as sources' scores."""
    base_feature: str = ""
    """The one that every task's logit starts from, such as the score of a blend that the model
    corrects; empty for none."""


def read_inputs(*, num_slots: int = 0, query_dense: object = (), **sizes: Any) -> RankerInputs:
    """Read the inputs of a saved ranker, of an earlier version too."""
    if num_slots or query_dense:
        raise ValueError(
            "this ranker learned position bias from shown lists, or reads dense features of a "
            "query, which this version does not; train it and release again"
        )
    return RankerInputs(**sizes)


@dataclass(frozen=True, kw_only=True)
class RankerConfig:
    """Settings of Ranker."""

    embedding_dim: int = 32
    """Width of each field: item, user, context, attended history, dense features."""
    key_dim: int = 32
    """Width of target attention's keys."""
    max_history: int = 50
    """Latest events of a history that count."""
    num_cross_layers: int = 2
    """Layers in which fields cross (DCN-v2)."""
    trunk: Trunk = "dense"
    """Block between the crossed fields and the tasks' heads: a dense network, or sparse experts,
    which were better at equal cost in a planted world and on no log. ``auto`` trains a dense one
    and a sparse one of as many operations, and keeps the dense one unless validation prefers
    experts by a standard error."""
    hidden_dim: int = 48
    """Inner width of an expert, or of a dense trunk."""
    num_experts: int = 8
    """Experts of a sparse trunk."""
    top_k: int = 2
    """Experts of a candidate in a sparse trunk."""
    head_dim: int = 32
    """Inner width of each task's head."""
    task_values: Mapping[str, float] = field(default_factory=dict)
    """Value of each task in the score, the sum of value * probability; 1 where not named."""
    dropout: float = 0.0
    """Share of values that are dropped in a training step."""
    id_dropout: float = 0.05
    """Share of items whose id is dropped in a training step, so that content learns to replace it;
    at 1 the model reads content and categories only, in serving too."""
    content_weight: float = 1.0
    """Factor of the content's vector relative to that of the id."""
    tile_rows: int = 384
    """Candidates scored at a time, padded, so that a score has the same bits in any batch; a
    multiple of 32. MKL's AVX2 kernels keep that promise at multiples of 96."""
    backend: Backend = "auto"
    """Backend of the embedding tables: TorchRec, our kernel or torch; ``auto`` is the fastest."""

    def __post_init__(self) -> None:
        check_choices(self, trunk=get_args(Trunk))
        sizes = ("embedding_dim", "key_dim", "max_history", "hidden_dim", "head_dim", "tile_rows")
        check_bounds(self, **dict.fromkeys(sizes, ">= 1"), dropout="[0, 1)", id_dropout="[0, 1]")
        if not 1 <= self.top_k <= self.num_experts:
            raise ValueError(
                f"top_k must be in [1, num_experts = {self.num_experts}], got {self.top_k}"
            )
        if self.tile_rows % 32:
            raise ValueError(
                "tile_rows must be a multiple of 32, because partly filled vector registers round "
                f"differently, got {self.tile_rows}"
            )
        for task, value in self.task_values.items():
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"task_values of {task!r} must be >= 0 and finite, got {value}")

    def with_trunk(self, trunk: Trunk) -> RankerConfig:
        """Replace ``auto``; a dense trunk is as wide as the experts of a candidate together."""
        hidden_dim = self.hidden_dim * (self.top_k if trunk == "dense" else 1)
        return replace(self, trunk=trunk, hidden_dim=hidden_dim)


def num_fields(inputs: RankerInputs) -> int:
    """Count the fields that are crossed: item, history, and what else there is."""
    return (
        2
        + bool(inputs.user_features)
        + bool(inputs.context_features)
        + bool(inputs.candidate_dense)
    )
