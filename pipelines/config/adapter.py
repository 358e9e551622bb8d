"""The section ``[adapter]``: how ``recsys adapt`` trains and judges a domain's adapter."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from recsys.evaluation.ranking import check_metric_name
from recsys.layers.lora.linear import LoraConfig
from recsys.training.optim import ScheduleConfig
from recsys.training.passes import TrainingConfig


@dataclass(frozen=True, kw_only=True)
class AdapterConfig(TrainingConfig):
    """A domain's adapter; examples are the domain's labels (windows, of a sequence model)."""

    domains: tuple[str, ...] = ()
    """Adapted to after each release; ``recsys adapt`` adapts to any."""
    model: Literal["auto", "two_tower", "sequence", "ranker"] = "auto"
    """What is adapted; ``auto`` is the sequence model where it is released, else the two-tower."""
    rank: int = 8
    alpha: float = 16.0
    targets: tuple[str, ...] = ()
    """Patterns of layers; by default all linear layers that read a query, or of a ranker those that
    read a candidate as one row."""
    tables: tuple[str, ...] = ()
    """``("item",)`` corrects the id vectors of the domain's items too; the ranker has none."""
    softmax_over: Literal["catalogue", "domain"] = "catalogue"
    """What a domain's labels are ranked against where adapters are judged, and where a sequence
    model's learns: every item, or the domain's, for surfaces that list no others."""
    centred: float = 1.0
    """Where the base met less than half of the domain's items: the share that the adapter takes off
    at the start of what they have in common; 0 for none."""
    dropout: float = 0.0
    max_share: float = 0.05
    """Of the base's parameters that an adapter may have."""
    metric: str = "ndcg@10"
    """What picks the best step and what the harm gate compares."""
    min_gain: float = 0.0
    """Relative gain over the base in the whole domain below which an adapter is refused."""
    max_drop: float = 0.0
    """Relative drop of a protected slice that is let pass, beside what chance explains."""
    min_slice_users: int = 20
    """Held-out users below which a slice is too small to judge."""
    batch_size: int = 128
    max_epochs: float = 20.0
    schedule: ScheduleConfig = field(default_factory=lambda: ScheduleConfig(learning_rate=1e-3))

    def __post_init__(self) -> None:
        super().__post_init__()
        check_metric_name(self.metric)
        for name in ("min_gain", "max_drop"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)}")
        if not 0 <= self.centred <= 1:
            raise ValueError(f"centred must be in [0, 1], got {self.centred}")
        if self.min_slice_users < 2:
            raise ValueError(f"min_slice_users must be >= 2, got {self.min_slice_users}")
        self.lora(("*",))

    def lora(self, default_targets: tuple[str, ...]) -> LoraConfig:
        """Give size and place of the adapter; ``default_targets`` where none are named."""
        return LoraConfig(
            targets=self.targets or default_targets,
            tables=self.tables,
            rank=self.rank,
            alpha=self.alpha,
            dropout=self.dropout,
            max_share=self.max_share,
        )
