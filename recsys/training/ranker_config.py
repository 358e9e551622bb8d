"""Settings of a ranker's training."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from recsys.models.configs import check_positive
from recsys.training.optim import AdamWConfig, ScheduleConfig
from recsys.training.passes import TrainingConfig


@dataclass(frozen=True, kw_only=True)
class RankerFitConfig(TrainingConfig):
    """Settings of a ranker's training; its examples are queries with a positive candidate."""

    num_candidates: int = 200
    """First places of the blend that are ranked, in training, evaluation and serving."""
    num_hard: int = 30
    """Candidates of a training step from the first places of the blend."""
    num_random: int = 30
    """Candidates of a training step drawn from the places after those."""
    like_from: float = 4.0
    """Events of at least this value are likes."""
    batch_size: int = 64
    max_epochs: float = 4.0
    warmup_share: float = 0.05
    optimizer: AdamWConfig = field(default_factory=lambda: AdamWConfig(weight_decay=0.1))
    schedule: ScheduleConfig = field(
        default_factory=lambda: ScheduleConfig(learning_rate=5e-4, decay="linear", final_share=0.02)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "num_hard", "num_random")
        if self.num_candidates <= self.num_hard:
            raise ValueError(
                f"num_candidates must be more than num_hard = {self.num_hard}, got "
                f"{self.num_candidates}"
            )
        if not math.isfinite(self.like_from):
            raise ValueError(f"like_from must be finite, got {self.like_from}")
