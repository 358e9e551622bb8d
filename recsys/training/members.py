"""Train the members of a sequence model one by one, then put them side by side.

Trained together, members read the same batches in the same order and share one norm that clips
their gradients. Apart, each has its own batches, optimizer, noise and best step, as models of an
ensemble do (Lakshminarayanan et al. 2017, arXiv:1612.01474); what comes out is one model with one
vector all the same. They can be trained at once on several devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.members import alone, side_by_side
from recsys.models.sequence.model import SequenceModel
from recsys.training.loop import TrainResult

Trained = tuple[SequenceModel, TrainResult]
SEEDS = 1000
"""Seeds of a run lie below; those of its further members above."""


def member_seed(seed: int, number: int) -> int:
    """Give a member of a run its own seed; the first has the run's."""
    return seed + SEEDS * number


def train_members(
    config: SequenceConfig, fit_one: Callable[[SequenceConfig, int | None], Trained]
) -> Trained:
    """Train a model at once, or its members apart where the settings say so.

    Args:
        config: The whole model's.
        fit_one: Trains a model of some settings; the number is of the member, None of all.

    Returns:
        The model, in evaluation mode, and how its training went.
    """
    if not config.trained_apart:
        return fit_one(config, None)
    members, results = [], []
    for number in range(config.num_members):
        model, result = fit_one(alone(config, number), number)
        members.append(model)
        results.append(result)
    return side_by_side(config, members), mean_result(results)


def mean_result(results: Sequence[TrainResult]) -> TrainResult:
    """Say how the trainings of all members went; a refit gives each as many steps as the mean."""
    metrics = [result.best_metric for result in results if result.best_metric is not None]
    schedules = [one.schedule_steps for one in results if one.schedule_steps is not None]
    return TrainResult(
        num_steps=max(result.num_steps for result in results),
        best_step=round(sum(result.best_step for result in results) / len(results)),
        best_metric=sum(metrics) / len(metrics) if metrics else None,
        bad_steps=sum(result.bad_steps for result in results),
        stopped_early=any(result.stopped_early for result in results),
        stopped_by_time=any(result.stopped_by_time for result in results),
        schedule_steps=round(sum(schedules) / len(schedules)) if schedules else None,
    )
