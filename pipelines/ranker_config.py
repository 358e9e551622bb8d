"""The section ``[ranker_training]``: whether and how a ranker orders what the blend found."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from recsys.training.optim import AdamWConfig, ScheduleConfig
from recsys.training.passes import TrainingConfig


@dataclass(frozen=True, kw_only=True)
class RankerTrainingConfig(TrainingConfig):
    """A ranker of the candidates of profile ``fast``; its examples are validation users.

    Nothing is left to stop it by, so it makes all its passes. ``epochs_per_evaluation``,
    ``validation_users`` and ``patience`` are not read.
    """

    enabled: bool = False
    """Whether it is trained, measured as ``ranked``, and served unless validation prefers the
    blend's order."""
    num_candidates: int = 300
    """First places of the blend that are ranked, in training, in measuring and in serving."""
    num_hard: int = 30
    """Candidates of a training step that stand first in the blend."""
    num_random: int = 70
    """Candidates of a training step that are drawn from the places behind those."""
    blend_share: float = 0.8
    """Share of the listwise loss that follows the blend's own opinion of the candidates, so that
    few users teach corrections of the blend instead of everything anew; the rest follows what was
    taken."""
    like_from: float = 4.0
    """Events of at least this value are likes, where events have values."""
    max_queries: int = 5_000
    """Validation users learned from and judged by."""
    min_found: int = 50
    """Validation users with their item among the candidates, in each half, below which none is
    trained."""
    batch_size: int = 32
    max_epochs: float = 20.0
    warmup_share: float = 0.05
    optimizer: AdamWConfig = field(default_factory=lambda: AdamWConfig(weight_decay=0.1))
    schedule: ScheduleConfig = field(
        default_factory=lambda: ScheduleConfig(learning_rate=2e-3, decay="linear", final_share=0.02)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("num_hard", "num_random", "max_queries", "min_found"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        if self.num_candidates <= self.num_hard:
            raise ValueError(
                f"num_candidates must be more than num_hard = {self.num_hard}, got "
                f"{self.num_candidates}"
            )
        if not 0 <= self.blend_share < 1:
            raise ValueError(f"blend_share must be in [0, 1), got {self.blend_share}")
        if not math.isfinite(self.like_from):
            raise ValueError(f"like_from must be finite, got {self.like_from}")
