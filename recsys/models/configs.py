"""Settings of the models without a training, of the two-tower and of the text search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from recsys.data.bounds import check_bounds
from recsys.layers.embedding.tables import Backend

REMOVED_SETTINGS: Mapping[str, object] = {
    "memory_orders": (),
    "memory_rows": 1 << 16,
    "first_code_limit": None,
    "softmax_over": "catalogue",
    "position_buckets": 32,
    "absolute_positions": True,
    "id_init_scale": 0.3,
    "max_scores": 1 << 26,
    "num_heads": 1,
    "first_weight": 0.1,
    "dense_label_smoothing": 0.2,
    "dense_weight": 0.0,
    "temperature": 0.07,
    "num_uniform_negatives": None,
    "leave_out_history": True,
    "combination": "sum",
    "cross_rank": 0,
    "num_shared_experts": 0,
    "routed_by": "item",
    "router": "softmax",
    "bias_rate": 0.01,
    "dense_steps": 0,
    "router_loss_weight": 0.01,
    "router_certainty": 0.0,
    "router_evenness": 0.0,
    "task_weighting": "uncertainty",
    "task_weights": {},
}
"""Removed settings of saved models, each with the one value that is still read."""


def without_removed(
    settings: Mapping[str, Any], removed: Mapping[str, object], place: Path
) -> dict[str, Any]:
    """Drop removed settings of a saved model; refuse one that had another value."""
    for name in removed.keys() & settings.keys():
        if settings[name] != removed[name]:
            raise ValueError(
                f"{place} was trained with {name} = {settings[name]}, which this version does not "
                "read; train it again"
            )
    return {name: value for name, value in settings.items() if name not in removed}


Choice = TypeVar("Choice")


def choices_of(setting: Choice | tuple[Choice, ...]) -> tuple[Choice, ...]:
    """List the values of a setting of which validation chooses, or its only one."""
    # As JSON a tuple is a list.
    return tuple(setting) if isinstance(setting, (tuple, list)) else (setting,)


@dataclass(frozen=True, kw_only=True)
class PopularityConfig:
    """Settings of Popularity."""

    half_life_days: float | None = 365.0
    """Age at which an event counts half; None counts every event once.

    A year was best on Amazon Beauty's validation split, where users end in different years; a
    shop that refits daily wants weeks.
    """

    def __post_init__(self) -> None:
        check_bounds(self, half_life_days="> 0")


@dataclass(frozen=True, kw_only=True)
class ItemToItemConfig:
    """Settings of item-to-item; the defaults were chosen on validation of three Amazon sets.

    Of several powers validation chooses.
    """

    num_neighbours: int = 200
    """Strongest pairs of an item that are kept."""
    window: int = 20
    """Largest distance between two events that form a pair."""
    distance_power: float | tuple[float, ...] = (0.4, 1.0)
    """Two events d apart add d ** -distance_power to their pair."""
    reverse_weight: float = 0.3
    """Weight of a pair against the direction of time, relative to along it."""
    source_power: float = 0.3
    """Divides by (events of the history's item) ** source_power."""
    target_power: float = 0.15
    """Divides by (events of the recommended item) ** target_power."""
    history_power: float | tuple[float, ...] = (0.85, 1.5, 2.5)
    """The r-th latest event of the history counts r ** -history_power."""
    max_history: int = 50
    """Latest events of a history that count."""

    def __post_init__(self) -> None:
        check_bounds(self, num_neighbours=">= 1", window=">= 1", max_history=">= 1")
        check_bounds(self, reverse_weight="[0, 1]", distance_power=">= 0", history_power=">= 0")


@dataclass(frozen=True, kw_only=True)
class EaseWeightsConfig:
    """Whether EASE is a source of candidates, and its settings."""

    enabled: bool = False
    """Whether it is fitted, measured with the others and served."""
    l2: tuple[float, ...] = (100.0, 30.0, 300.0)
    """L2 penalties, in users of an item, of which validation chooses."""
    history_power: tuple[float, ...] = (0.6, 0.0, 0.3, 1.0)
    """The r-th latest event of the history counts r ** -history_power, of which validation
    chooses; 0 is plain EASE."""
    exact_items: int = 12_500
    """Items of the exact regression, those with the most users. Memory grows with the square, time
    with the cube: 1 GiB and 20 s at 12,500 on one core; estimated 10 GiB and 20 minutes at 50,000
    on two."""
    extended_items: int = 50_000
    """Items with weights at all, those with the most users: each of the others takes time by the
    size of the catalogue, a million of them hours."""

    def __post_init__(self) -> None:
        check_bounds(self, l2="> 0", history_power=">= 0")
        check_bounds(self, exact_items=">= 1", extended_items=">= 1")


@dataclass(frozen=True, kw_only=True)
class RepeatsConfig:
    """Whether items taken before are a source, and its settings."""

    enabled: bool = True
    """Takes effect only where lists may hold the history (evaluation.exclude_history = false)."""
    history_power: tuple[float, ...] = (0.6, 0.0, 0.3, 1.0, 2.0)
    """An item's r-th latest event counts r ** -history_power ..."""
    history_decay: tuple[float, ...] = (1.0, 0.97, 0.9)
    """... times history_decay ** (r - 1), of which validation chooses."""

    def __post_init__(self) -> None:
        check_bounds(self, history_power=">= 0", history_decay="(0, 1]")


@dataclass(frozen=True, kw_only=True)
class NextBasketConfig:
    """Whether the next basket is a source, and its settings."""

    enabled: bool = True
    """Takes effect only where lists may hold the history (evaluation.exclude_history = false) and
    events have times."""
    window: int = 3
    """Baskets after a basket that form pairs with it."""
    source_power: float = 0.5
    """Divides by (events of the history's item) ** source_power."""
    target_power: float = 0.3
    """Divides by (events of the recommended item) ** target_power."""
    history_power: tuple[float, ...] = (0.6, 0.0, 0.3, 1.0, 2.0)
    """The r-th latest event of the history counts r ** -history_power, of which validation
    chooses."""

    def __post_init__(self) -> None:
        check_bounds(self, history_power=">= 0", window=">= 1")


@dataclass(frozen=True, kw_only=True)
class ContentSimilarityConfig:
    """Settings of ContentSimilarity."""

    history_power: float = 1.0
    """The r-th latest event of the history counts r ** -history_power."""
    columns: int | tuple[int, ...] | None = None
    """Columns of the content embeddings that are compared, from the first on; validation chooses
    among several, None is all."""

    def __post_init__(self) -> None:
        check_bounds(self, history_power=">= 0", columns=">= 1")


@dataclass(frozen=True, kw_only=True)
class TwoTowerConfig:
    """Settings of TwoTower; the defaults were chosen on validation of Amazon Beauty."""

    embedding_dim: int = 128
    """Width of query and item vectors."""
    max_history: int = 50
    """Latest events of a history that count."""
    hidden_dim: int = 256
    """Width inside the query tower's feed-forward layer."""
    dropout: float = 0.4
    """Share of values that are dropped in a training step."""
    id_dropout: float = 0.05
    """Share of items whose id is hidden in a training step, so that content replaces them."""
    content_weight: float = 3.0
    """Multiplies the projected content; larger lets content learn faster than the ids."""
    temperature: float = 0.07
    """Divides the cosine before the softmax."""
    label_smoothing: float = 0.1
    """Share of the target that is spread over all candidates."""
    num_uniform_negatives: int = 2048
    """Uniform draws per step; as many as there are items or more means every item once."""
    backend: Backend = "auto"
    """Backend of the embedding tables: TorchRec, our kernel or torch; ``auto`` is the fastest."""

    def __post_init__(self) -> None:
        check_bounds(self, temperature="> 0", num_uniform_negatives=">= 0")
        check_bounds(self, **dict.fromkeys(("dropout", "id_dropout", "label_smoothing"), "[0, 1)"))
