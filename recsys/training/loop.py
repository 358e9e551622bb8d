"""The one training loop, for every model.

A run is a function of its config, its seed and its data: the loss is a function of the step, so a
run killed at any moment resumes from its last checkpoint and ends with the same weights, bit for
bit, as one that was never stopped (same machine, same number of threads; on CUDA with
``deterministic``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.utils.deterministic
from torch import Tensor, nn
from torch.optim import Optimizer

from recsys.kernels.choice import is_on
from recsys.training.captured import (
    MIN_STEPS,
    AheadLoss,
    BadSteps,
    CapturedStep,
    FixedShapeLoss,
    StepGuard,
)
from recsys.training.checkpoint import (
    Checkpoint,
    CheckpointError,
    load_latest,
    prepare_directory,
    save_checkpoint,
)
from recsys.training.optim import RowTables, clip_gradients
from recsys.training.passes import LoopConfig, lr_at
from recsys.training.progress import (
    Progress,
    SilentProgress,
    SilentTracker,
    Tracker,
    TrainState,
    seconds_now,
    steps_to_skip,
)
from recsys.training.ranks import ALONE, Ranks

Evaluate = Callable[[nn.Module], Mapping[str, float]]


# Settings that may change between a kill and the resume, because no weight depends on them, or, of
# the limit, on when the kill came as well.
FREE_TO_CHANGE = {"log_every", "checkpoint_every", "checkpoint_seconds", "max_seconds"}


class TrainingDiverged(RuntimeError):
    """Loss or gradients stayed non-finite; the model holds the last good weights."""

    exit_code = 70
    """For the process that ran the training (sysexits' EX_SOFTWARE)."""


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """How a run ended; the model holds the best weights where there was a validation."""

    num_steps: int
    """Steps done."""
    best_step: int
    """Steps that the weights in the model have seen; the number to refit with."""
    best_metric: float | None
    """None without ``evaluate``."""
    bad_steps: int
    """Steps skipped because loss or gradient was not finite."""
    stopped_early: bool
    stopped_by_time: bool = False
    """Whether ``max_seconds`` left no time for all steps."""
    schedule_steps: int | None = None
    """Steps that the learning rate's schedule took, or would have taken where validation stopped
    the run; what a refit goes by."""


class Training:
    """State of a training: a model, its optimizer, the counters and the best weights so far."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        config: LoopConfig,
        directory: Path | None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.ranks = ranks
        self.model = model
        self.optimizer = optimizer
        self.config = config
        self.directory = directory
        self.state = TrainState()
        self.best: dict[str, Tensor] = {}
        self._saved_at = time.monotonic()
        self._saved_step = 0
        self._begun_at = seconds_now()

    def resume(self) -> None:
        """Load the newest usable checkpoint; without one, stay at the start.

        Raises:
            CheckpointError: If it belongs to a run with other settings or another model.
        """
        if self.directory is None:
            return
        directory = self.directory
        if self.ranks.rank == 0:
            prepare_directory(directory)
        checkpoint = self.ranks.in_turn(lambda: load_latest(directory))
        if checkpoint is None:
            return
        settings = checkpoint.state["settings"]
        for name, value in self._settings().items():
            if settings.get(name) != value:
                raise CheckpointError(
                    f"the checkpoint in {self.directory} was made with {name} = "
                    f"{settings.get(name)}, this run has {value}; "
                    "delete that folder to train from the start, or restore the setting"
                )
        try:
            self.ranks.load_state(self.model, checkpoint.tensors["model"])
            optimizer = checkpoint.tensors["optimizer"]
            self.ranks.load_optimizer_state(self.model, self.optimizer, optimizer)
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(
                f"the checkpoint in {self.directory} belongs to another model: {error}"
            ) from error
        self.ranks.set_random_states(checkpoint.tensors["random"])
        self.best = dict(checkpoint.tensors["best"])
        self.state = TrainState(**checkpoint.state["counters"])
        self._saved_step = self.state.step
        self._begun_at = seconds_now() - self.state.seconds

    def save(self) -> None:
        """Write a checkpoint, unless this step has one or there is no folder for it."""
        if self.directory is None or self._saved_step == self.state.step:
            return
        checkpoint = Checkpoint(
            step=self.state.step,
            tensors={
                "model": self.ranks.state_of(self.model),
                "optimizer": self.ranks.gather_optimizer_state(self.model, self.optimizer),
                "random": self.ranks.random_states(),
                "best": self.best,
            },
            state={"settings": self._settings(), "counters": asdict(self.state)},
        )
        if self.ranks.rank == 0:
            save_checkpoint(self.directory, checkpoint)
        self._saved_at = time.monotonic()
        self._saved_step = self.state.step

    def save_is_due(self) -> bool:
        every, seconds = self.config.checkpoint_every, self.config.checkpoint_seconds
        by_steps = every is not None and self.state.step % every == 0
        if by_steps or seconds is None:
            return by_steps
        return self.ranks.agreed(time.monotonic() - self._saved_at) >= seconds

    def validate(self, evaluate: Evaluate) -> dict[str, float]:
        """Measure the model, keep its weights if they are the best, and note when to stop.

        A metric that is not a number is never the best.
        """
        began = seconds_now()
        self.model.eval()
        with torch.no_grad():
            values = dict(evaluate(self.model))
        self.model.train()
        if self.config.max_seconds is not None:
            self.state.num_validations += 1
            self.state.validation_seconds += self.ranks.agreed(seconds_now() - began)
        if self.config.metric not in values:
            raise ValueError(
                f"metric {self.config.metric!r} is not among the validated {sorted(values)}"
            )
        value, state = self.ranks.agreed(float(values[self.config.metric])), self.state
        if not math.isnan(value) and (state.best_metric is None or value > state.best_metric):
            state.best_metric, state.best_step = value, state.step
            state.evaluations_since_best = 0
            self.best = {
                name: tensor.detach().to("cpu", copy=True)
                for name, tensor in self.ranks.state_of(self.model).items()
            }
        else:
            state.evaluations_since_best += 1
            patience = self.config.patience
            state.stopped_early = patience is not None and state.evaluations_since_best >= patience
        return values

    def count_step(self, *, validates: bool) -> bool:
        """Move on along the schedule, faster where time is short; say whether this was the end."""
        state, limit = self.state, self.config.max_seconds
        state.step += 1
        if limit is not None:
            state.seconds = self.ranks.agreed(seconds_now() - self._begun_at)
            if state.step == 1:
                state.first_step_seconds = state.seconds
            every = self.config.eval_every if validates else None
            remaining = max(0.0, self.config.num_steps - state.place())
            state.skipped_steps += steps_to_skip(state, remaining, limit, every)
        return self.has_ended()

    def has_ended(self) -> bool:
        return self.state.place() >= self.config.num_steps

    def count_bad_steps(self, bad: BadSteps, tracker: Tracker) -> None:
        """Note steps that were skipped.

        Raises:
            TrainingDiverged: There were too many in a row.
        """
        if bad.total:
            self.state.bad_steps += bad.total
            tracker.log(self.state.step, bad_steps=self.state.bad_steps)
        if bad.longest >= self.config.max_bad_steps:
            raise self.roll_back(bad.longest)

    def roll_back(self, bad_in_a_row: int) -> TrainingDiverged:
        """Load the last checkpoint into the model; return the error to raise."""
        step, num_bad = self.state.step, self.state.bad_steps
        self.resume()
        return TrainingDiverged(
            f"loss or gradient was not finite in {bad_in_a_row} steps in a row up to step {step} "
            f"({num_bad} in all); the model is back at step {self.state.step}. Lower "
            "learning_rate or max_grad_norm, or look for NaN in the inputs"
        )

    def finish(self) -> TrainResult:
        """Leave the best weights in the model and tell how the run went."""
        state = self.state
        self.ranks.whole(self.model, self.best)
        self.model.eval()
        return TrainResult(
            num_steps=state.step,
            best_step=state.step if state.best_metric is None else state.best_step,
            best_metric=state.best_metric,
            bad_steps=state.bad_steps,
            stopped_early=state.stopped_early,
            stopped_by_time=state.step < self.config.num_steps and not state.stopped_early,
            schedule_steps=round(state.step * self.config.num_steps / max(1.0, state.place())),
        )

    def _settings(self) -> dict[str, Any]:
        values = asdict(self.config)
        return {name: value for name, value in values.items() if name not in FREE_TO_CHANGE}


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """Choose the precision of the forward pass."""
    cuda = device.type == "cuda"
    wanted = precision == "bfloat16" or (
        precision == "auto" and cuda and torch.cuda.is_bf16_supported()
    )
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=wanted)


@contextmanager
def reproducible_sums(enabled: bool) -> Iterator[None]:
    """Allow only torch operations that give the same bits each time."""
    before = torch.are_deterministic_algorithms_enabled()
    memory = torch.utils.deterministic
    fill_before = memory.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(enabled or before)
    # Filling new memory is for finding bugs and costs time.
    memory.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        memory.fill_uninitialized_memory = fill_before  # type: ignore[attr-defined]


def captured_step(
    run: Training, loss_at: Callable[[int], Tensor], tables: RowTables, guard: StepGuard
) -> CapturedStep | None:
    """Prepare to run steps as CUDA graphs; None where they cannot be, or should not."""
    config, device = run.config, next(run.model.parameters()).device
    # On CUDA, in one process and by the fused optimizer alone.
    fast = device.type == "cuda" and is_on("captured_step") and not guard.waits
    pays = config.num_steps >= MIN_STEPS and run.ranks.size == 1 and not tables.layers
    if not (fast and pays and isinstance(loss_at, FixedShapeLoss)):
        return None
    precision = partial(autocast, device, config.precision)
    return CapturedStep(loss_at, run.model, guard, run.optimizer, config.max_grad_norm, precision)


def launched_step(
    run: Training,
    loss_at: Callable[[int], Tensor],
    learning_rate: float,
    tables: RowTables,
    guard: StepGuard,
) -> tuple[Tensor, Tensor]:
    """Train one step; return the mean loss of all ranks and the norm of the gradients."""
    model, ranks, config = run.model, run.ranks, run.config
    for group in run.optimizer.param_groups:
        group["lr"] = learning_rate
    tables.begin_step(learning_rate)
    with autocast(next(model.parameters()).device, config.precision):
        loss = loss_at(run.state.step)
    # Tables that move by rows do so in here, so they hear of the loss first.
    mean_loss = ranks.mean(loss.detach())
    if tables.may_move(mean_loss):
        # In this thread: to wake autograd's own took longer than many a kernel.
        with torch.autograd.set_multithreading_enabled(False):
            loss.backward()  # type: ignore[no-untyped-call]
    ranks.mean_gradients(model)
    grad_norm = clip_gradients(model.parameters(), config.max_grad_norm)
    # Dense weights move after loss and gradient are known to be finite, and a step that is skipped
    # leaves them and the optimizer alone.
    guard.step(mean_loss + grad_norm)
    return mean_loss, grad_norm


def train(
    model: nn.Module,
    loss_at: Callable[[int], Tensor],
    optimizer: Optimizer,
    config: LoopConfig,
    *,
    evaluate: Evaluate | None = None,
    tracker: Tracker | None = None,
    progress: Progress | None = None,
    checkpoint_dir: Path | None = None,
    ranks: Ranks = ALONE,
) -> TrainResult:
    """Train a model until its steps, time or patience run out, resuming from ``checkpoint_dir``.

    Args:
        loss_at: Mean loss of the model on the batch of a step (0, 1, ...), a scalar. The batch
            must depend on the step alone (``BatchOrder``); torch's global generators may be drawn
            from, their state is part of a checkpoint.
        evaluate: Validation metrics of the model; called in eval mode without gradients.
        checkpoint_dir: Folder of this run's checkpoints; None neither saves nor resumes.

    Raises:
        TrainingDiverged: If loss or gradients stay non-finite; carries an exit code.
        CheckpointError: If the folder holds another run's checkpoints, or only damaged ones.
        OSError: If a checkpoint could not be written, or at the start if none ever could.
    """
    tracker = SilentTracker() if tracker is None else tracker
    progress = SilentProgress() if progress is None else progress
    device = next(model.parameters()).device
    run, tables = Training(model, optimizer, config, checkpoint_dir, ranks), RowTables(model)
    ranks.begin(model)
    run.resume()
    state, guard = run.state, StepGuard(optimizer, device)
    model.train()

    deterministic = device.type == "cpu" if config.deterministic is None else config.deterministic
    captured = None if deterministic else captured_step(run, loss_at, tables, guard)
    with reproducible_sums(deterministic):
        while not (run.has_ended() or state.stopped_early):
            learning_rate = lr_at(state.place(), config.schedule, config.num_steps)
            numbers = None if captured is None else captured.step(state.step, learning_rate)
            if numbers is None:
                numbers = launched_step(run, loss_at, learning_rate, tables, guard)
            mean_loss, grad_norm = numbers
            if guard.waits:
                run.count_bad_steps(guard.read(), tracker)
            optimizer.zero_grad(set_to_none=True)
            last = run.count_step(validates=evaluate is not None)
            is_judged = evaluate is not None and (state.step % config.eval_every == 0 or last)
            # A validation may end the run, and then no further step needs a batch.
            if isinstance(loss_at, AheadLoss) and not (last or is_judged):
                loss_at.ahead(state.step)

            if state.step % config.log_every == 0 or last:
                run.count_bad_steps(guard.read(), tracker)
                shown = {"loss": mean_loss.item(), "grad_norm": grad_norm.item()}
                tracker.log(state.step, **shown, learning_rate=learning_rate)
                progress.show(state.step, config.num_steps, **shown)

            if evaluate is not None and is_judged:
                run.count_bad_steps(guard.read(), tracker)
                tracker.log(state.step, **run.validate(evaluate))

            if run.save_is_due():
                run.count_bad_steps(guard.read(), tracker)
                # Never in a bad streak: what made it may be in the weights already.
                if guard.in_a_row == 0:
                    run.save()

    run.save()
    return run.finish()
