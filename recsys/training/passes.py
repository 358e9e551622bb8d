"""Settings of a training in passes over its examples, which turn into steps once these are counted.

Settings do not depend on the size of a data set, so one setting serves any size of data. Schedules
are plain functions of the step, so a resumed run needs no scheduler state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from recsys.data.bounds import check_bounds, check_choices

ROWS_PAY_FROM = 1 << 25
"""Elements of a layer's tables from which moving rows beats a dense step: on an H200 the dense step
of the two-tower took 0.9 times as long as by rows at 1.5M elements, 1.07 times at 64M and 1.8 times
at 640M (``tests/benchmarks/results/kernels/training_step_cuda.md``)."""
REFIT_WARMUP_SHARE = 0.1
"""Least share of a continued refit's steps in which the rate rises: the optimizer starts fresh."""


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """How the learning rate rises and falls over the steps."""

    learning_rate: float = 1e-3
    """The peak, reached at the end of the warm-up."""
    warmup_steps: int = 0
    """Steps of linear rise from learning_rate / warmup_steps."""
    decay: Literal["constant", "linear", "cosine"] = "cosine"
    """How the learning rate falls after the warm-up."""
    decay_steps: int | None = None
    """Step at which the decay ends, warm-up included; None is the run's number of steps. A refit
    that stops early keeps the original's schedule by giving the original's number of steps."""
    final_share: float = 0.0
    """Share of the peak that remains at the end of the decay."""

    def __post_init__(self) -> None:
        check_bounds(self, learning_rate="> 0", warmup_steps=">= 0", decay_steps=">= 1")
        check_bounds(self, final_share="[0, 1]")
        check_choices(self, decay=("constant", "linear", "cosine"))


def lr_at(step: float, schedule: ScheduleConfig, num_steps: int) -> float:
    """Return the learning rate of a step, counted from 0, of a run of ``num_steps``."""
    if step < schedule.warmup_steps:
        return schedule.learning_rate * (step + 1) / schedule.warmup_steps
    end = schedule.decay_steps or num_steps
    done = (step - schedule.warmup_steps) / max(1, end - schedule.warmup_steps)
    done = min(done, 1.0)
    if schedule.decay == "constant":
        remaining = 1.0
    elif schedule.decay == "linear":
        remaining = 1 - done
    else:
        remaining = (1 + math.cos(math.pi * done)) / 2
    share = schedule.final_share + (1 - schedule.final_share) * remaining
    return schedule.learning_rate * share


@dataclass(frozen=True, kw_only=True)
class AdamWConfig:
    """AdamW's own numbers; the learning rate comes from the schedule."""

    weight_decay: float = 0.01
    """Share of a weight that a step takes off, times the learning rate."""
    tables: Literal["auto", "dense", "adam", "rowwise_adam", "rowwise_adagrad"] = "auto"
    """How embedding tables move. ``dense``: as any other weight, every row at every step. ``adam``:
    only rows of the batch, inside the backward; a row's moments then rest while it does not occur.
    ``rowwise_adam``: so too, with one word of squares a row. ``rowwise_adagrad``: by that word
    alone, without a mean of gradients, as DLRM's tables. ``auto``: ``adam`` for large tables on
    CUDA with Triton, where it was measured faster, else dense."""
    matrices: Literal["adam", "orthogonal"] = "adam"
    """How the matrices inside blocks move: by Adam, or by Muon's orthogonal steps."""
    max_row_norm: float | None = 1.0
    """Norm to which each row's gradient is clipped if tables move by rows: a global norm is known
    only after they have moved; inf never clips."""

    def __post_init__(self) -> None:
        kinds = ("auto", "dense", "adam", "rowwise_adam", "rowwise_adagrad")
        check_choices(self, tables=kinds, matrices=("adam", "orthogonal"))
        check_bounds(self, weight_decay=">= 0")


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """Numbers of one training run."""

    num_steps: int
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    max_grad_norm: float | None = 1.0
    """Global norm that gradients are clipped to; None does not clip."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """``auto`` is bfloat16 autocast on a CUDA device that has it and float32 elsewhere. Weights
    and optimizer state are float32 either way."""
    deterministic: bool | None = None
    """Whether only operations with reproducible sums run; None means on CPU. With more than one
    thread, torch's gradient of ``x[index]`` is otherwise different in every run. On CUDA torch
    refuses what it has no reproducible form of, and wants CUBLAS_WORKSPACE_CONFIG set."""
    eval_every: int = 500
    """Steps between validations, where ``evaluate`` is given; the last step is always validated."""
    metric: str = "ndcg@10"
    """The validated number that picks the best weights; higher is better."""
    patience: int | None = 5
    """Stop after this number of validations in a row without a new best; None never stops early."""
    max_seconds: float | None = None
    """Ends the run after this time, validated once more, its learning rate decayed by then; None is
    no limit."""
    max_bad_steps: int = 5
    """Stop after this number of steps in a row whose loss or gradient is not finite."""
    log_every: int = 50
    checkpoint_every: int | None = None
    """Steps between checkpoints, and/or:"""
    checkpoint_seconds: float | None = 300.0

    def __post_init__(self) -> None:
        numbers = ("num_steps", "eval_every", "max_bad_steps", "log_every", "patience")
        check_bounds(self, **dict.fromkeys((*numbers, "checkpoint_every"), "> 0"))
        check_bounds(self, max_grad_norm="> 0 or inf", max_seconds="> 0 or inf")
        check_choices(self, precision=("auto", "float32", "bfloat16"))


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
        sizes = ("batch_size", "max_epochs", "epochs_per_evaluation", "validation_users")
        numbers = (*sizes, "refit_epochs", "refit_rate")
        check_bounds(self, **dict.fromkeys(numbers, "> 0"), warmup_share="[0, 1)")
        check_bounds(self, max_seconds="> 0 or inf")

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
        check_bounds(self, num_hard=">= 1", num_random=">= 1")
        if self.num_candidates <= self.num_hard:
            raise ValueError(
                f"num_candidates must be more than num_hard = {self.num_hard}, got "
                f"{self.num_candidates}"
            )
        if not math.isfinite(self.like_from):
            raise ValueError(f"like_from must be finite, got {self.like_from}")


@dataclass(frozen=True, kw_only=True)
class ShardingConfig:
    """Which tables are spread over ranks."""

    shard_from: int = ROWS_PAY_FROM
    """Elements of a layer's tables from which they are sharded; smaller ones are on every rank."""

    def __post_init__(self) -> None:
        check_bounds(self, shard_from=">= 0")
