"""Settings of a training in passes over its examples, which turn into steps once these are counted.

Settings do not depend on the size of a data set, so one setting serves any size of data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from recsys.models.configs import check_positive
from recsys.training.optim import AdamWConfig, LoopConfig, ScheduleConfig

REFIT_WARMUP_SHARE = 0.1
"""Least share of a continued refit's steps in which the rate rises: the optimizer starts fresh."""


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How a model is trained; for the two-tower the examples are the labels."""

    batch_size: int = 512
    """Examples of a step, over all ranks."""
    max_epochs: float = 30.0
    """Passes over the examples, unless validation stops the run before."""
    max_steps: int | None = None
    """Ends the run earlier on large data."""
    max_seconds: float | None = None
    """Ends it after this time, with one more validation and the learning rate decayed by then; None
    is no limit. Members that are trained apart share it, a refit has it again."""
    epochs_per_evaluation: float = 1.0
    """Passes from one look at validation to the next."""
    validation_users: int = 5_000
    """Users, drawn once by the seed, on whom the best step is chosen."""
    patience: int = 4
    """Stop after this number of evaluations in a row without a new best."""
    warmup_share: float = 0.02
    """Share of the steps in which the learning rate rises."""
    optimizer: AdamWConfig = field(default_factory=AdamWConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    max_grad_norm: float | None = 1.0
    """Norm that a gradient is scaled down to; None scales none."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the forward pass; ``auto`` is bfloat16 on a GPU that has it, else float32."""
    refit_epochs: float | None = None
    """Passes over all events in which a refit continues the trained weights; None trains again
    from the start, for as many passes as validation chose."""
    refit_rate: float = 0.5
    """Peak of a continued refit's learning rate, as a share of the schedule's."""
    checkpoint_seconds: float = 60.0
    """Time between the states that a killed run resumes from."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "max_epochs", "epochs_per_evaluation", "validation_users"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be > 0, got {getattr(self, name)}")
        if self.max_seconds is not None and self.max_seconds <= 0:
            raise ValueError(f"max_seconds must be > 0 or left out, got {self.max_seconds}")
        if self.refit_epochs is not None and self.refit_epochs <= 0:
            raise ValueError(f"refit_epochs must be > 0 or left out, got {self.refit_epochs}")
        if self.refit_rate <= 0:
            raise ValueError(f"refit_rate must be > 0, got {self.refit_rate}")
        if not 0 <= self.warmup_share < 1:
            raise ValueError(f"warmup_share must be in [0, 1), got {self.warmup_share}")

    def for_examples(self, num_examples: int) -> LoopConfig:
        """Turn passes into steps for a number of examples."""
        per_epoch = max(1, num_examples // self.batch_size)
        num_steps = max(1, round(self.max_epochs * per_epoch))
        if self.max_steps is not None:
            num_steps = min(num_steps, self.max_steps)
        return self.for_steps(num_steps, max(1, round(self.epochs_per_evaluation * per_epoch)))

    def for_refit(
        self,
        best_step: int,
        num_examples: tuple[int, int],
        schedule_steps: int | None = None,
        share: float = 1.0,
    ) -> LoopConfig:
        """Describe a refit of as many passes as were best, with that run's schedule.

        Args:
            schedule_steps: Steps that the run's schedule took; None where time did not shorten it.
        """
        before, now = num_examples
        growth = share * now / before
        num_steps = max(1, round(best_step * growth))
        whole = schedule_steps or self.for_examples(before).num_steps
        return self.for_steps(num_steps, num_steps, decay_steps=max(1, round(whole * growth)))

    def for_continued_refit(self, num_examples: int) -> LoopConfig:
        """Describe ``refit_epochs`` more passes of trained weights over a number of examples."""
        assert self.refit_epochs is not None, "without refit_epochs a refit starts anew"
        rate = self.refit_rate * self.schedule.learning_rate
        shorter = replace(
            self,
            max_epochs=self.refit_epochs,
            warmup_share=max(self.warmup_share, REFIT_WARMUP_SHARE),
            schedule=replace(self.schedule, learning_rate=rate),
        )
        return shorter.for_examples(num_examples)

    def continued(self, passes: float, rate: float) -> TrainingConfig:
        """Continue trained weights for some passes over new events, at a share of the rate."""
        return replace(self, refit_epochs=passes, refit_rate=rate, max_seconds=None)

    def for_steps(
        self, num_steps: int, eval_every: int, decay_steps: int | None = None
    ) -> LoopConfig:
        """Describe a run of ``num_steps``, with the schedule of one of ``decay_steps``."""
        whole = decay_steps or num_steps
        schedule = ScheduleConfig(
            learning_rate=self.schedule.learning_rate,
            warmup_steps=self.schedule.warmup_steps or math.ceil(self.warmup_share * whole),
            decay=self.schedule.decay,
            decay_steps=self.schedule.decay_steps or whole,
            final_share=self.schedule.final_share,
        )
        return LoopConfig(
            num_steps=num_steps,
            schedule=schedule,
            max_grad_norm=self.max_grad_norm,
            precision=self.precision,
            eval_every=eval_every,
            patience=self.patience,
            max_seconds=self.max_seconds,
            log_every=max(1, min(50, eval_every)),
            checkpoint_seconds=self.checkpoint_seconds,
        )


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
