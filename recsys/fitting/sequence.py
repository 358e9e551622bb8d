"""Fit the sequence model on windows of users' events, of which every position is a label."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import recsys.models.names as names
from recsys.data.dataset import FitSplit, Sequences
from recsys.data.windows import BatchOrder, Windows, num_windows, training_windows
from recsys.fitting.fixed_shapes import FixedWindows
from recsys.fitting.queries import ModelInputs, NewEvents
from recsys.fitting.spec import (
    Data,
    Fitted,
    ModelSpec,
    Start,
    StopBy,
    TrainingRun,
    fit_retriever,
    vector_source,
)
from recsys.models.item_to_item import counted_neighbours
from recsys.models.item_weights.model import ItemNeighbours
from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.members import alone, first_members, side_by_side
from recsys.models.sequence.model import SequenceModel
from recsys.retrieval.sources import ScoredSource
from recsys.training.captured import FixedShapeLoss
from recsys.training.loop import TrainResult
from recsys.training.passes import TrainingConfig

Trained = tuple[SequenceModel, TrainResult]


def train_members(
    config: SequenceConfig, fit_one: Callable[[SequenceConfig, int | None], Trained]
) -> Trained:
    """Train a model at once, or its members apart where the settings say so.

    Args:
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
    """Summarise the trainings of all members; a refit trains each for the mean number of steps."""
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


def fixed_loss(
    model: SequenceModel,
    loss_at: Callable[[int], Tensor],
    order: BatchOrder,
    windows: Windows,
    sequences: Sequences,
) -> Callable[[int], Tensor]:
    """Bring batches to one shape where a step of it needs no look at the data."""
    config = model.config
    if model.num_item_rows != model.inputs.num_item_rows:
        return loss_at
    known = {"times": sequences.times, "types": sequences.event_types}
    fixed = FixedWindows.of(
        windows,
        sequences,
        model.num_item_rows,
        min(order.batch_size, order.num_samples),
        config.max_length,
        columns={name: one for name, one in known.items() if model.reads[name] and one is not None},
        num_draws=model.num_draws(),
    )
    if fixed.sampled and not model.encodes_without_waiting(fixed.sampled.num_rows):
        return loss_at
    return FixedShapeLoss(
        loss_at,
        lambda step: fixed.inputs(order.indices(step), np.random.default_rng([order.seed, step])),
        lambda batch: model.loss(fixed.labelled(batch)),
    )


def near_items(inputs: ModelInputs, split: FitSplit, num_neighbours: int) -> ItemNeighbours | None:
    """Find the items that occur most near each item in the events of a split; None for none."""
    if not num_neighbours:
        return None
    events = inputs.sequences.positive
    return counted_neighbours(
        np.asarray(events.item_rows),
        np.asarray(events.offsets[:-1]),
        np.asarray(events.visible_end(split)),
        inputs.sizes.num_item_rows,
        num_neighbours,
    )


def member_training(training: TrainingConfig, num_members: int) -> TrainingConfig:
    """Return a member's training with its share of the time."""
    limit = training.max_seconds
    return training if limit is None else replace(training, max_seconds=limit / num_members)


def fit_sequence(
    inputs: ModelInputs,
    config: SequenceConfig,
    training: TrainingConfig,
    run: TrainingRun,
    stop_by: StopBy,
    *,
    split: FitSplit = "train",
    new: NewEvents | None = None,
) -> Fitted[SequenceModel]:
    """Train a model, or its members one by one where ``config.trained_apart``.

    Windows are those of the split, or those of them that an incremental training sees.
    """
    windows = training_windows(inputs.sequences, split, config.max_length)
    if new is not None:
        windows = new.windows(windows, inputs.sequences)
    # An increment without new windows only takes new rows and counts.
    num_examples = len(windows) if new is None else max(1, len(windows))
    neighbours = near_items(inputs, split, config.num_neighbours)

    def fit_one(part: SequenceConfig, number: int | None) -> Trained:
        own = run if number is None else run.for_member(number)
        steps = training if number is None else member_training(training, config.num_members)
        torch.manual_seed(own.seed)
        counts = inputs.item_counts(split)
        model = SequenceModel(part, inputs.sizes, inputs.catalogue, counts, neighbours)
        model = model.to(run.device)
        order = BatchOrder(num_examples, training.batch_size, own.seed)
        fixes = run.device.type == "cuda" and run.ranks.size == 1 and len(windows) > 0

        def loss_at(step: int) -> Tensor:
            batch = windows.batch(inputs.sequences, run.ranks.part(order.indices(step)))
            share = run.ranks.share(step, own.seed)
            return model.loss(model.labelled(batch).to(run.device), share=share)

        loss = fixed_loss(model, loss_at, order, windows, inputs.sequences) if fixes else loss_at
        source = ScoredSource(model.score)
        return model, fit_retriever(model, source, loss, len(windows), steps, own, stop_by)

    model, result = train_members(config, fit_one)
    return Fitted(model, result, len(windows))


def _fit(
    config: SequenceConfig, data: Data, until: FitSplit, start: Start, /
) -> Fitted[SequenceModel]:
    run, stop_by, training, new = start
    assert training is not None
    assert stop_by is not None
    return fit_sequence(data.inputs, config, training, run, stop_by, split=until, new=new)


def save_members(model: SequenceModel, folder: Path) -> None:
    """Write the fast members as the model; if there are others, all of them as the ensemble."""
    first = first_members(model)
    first.save(folder / names.SEQUENCE.name)
    if first is not model:
        model.save(folder / names.ENSEMBLE.name)


SEQUENCE = ModelSpec(
    names=names.SEQUENCE,
    config=SequenceConfig,
    fit=_fit,
    load=lambda folder, over: SequenceModel.load(folder, over.catalogue),
    source=vector_source,
    save=save_members,
    num_examples=lambda config, sequences, split: num_windows(sequences, split, config.max_length),
)
ENSEMBLE = replace(SEQUENCE, names=names.ENSEMBLE)
"""All members of a sequence model, of which ``SEQUENCE`` has those of profile ``fast``."""
