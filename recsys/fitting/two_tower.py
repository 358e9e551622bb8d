"""Fit the two-tower on single labels.

Axes: P labels.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import recsys.models.names as names
from recsys.data.batch import moved
from recsys.data.dataset import FitSplit, Rows
from recsys.data.windows import BatchOrder
from recsys.fitting.fixed_shapes import HISTORY_TYPES, FixedQueries
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
from recsys.models.configs import TwoTowerConfig
from recsys.models.two_tower import PreparedBatch, TwoTower
from recsys.retrieval.sources import ScoredSource
from recsys.training.captured import AheadLoss, FixedShapeLoss
from recsys.training.passes import TrainingConfig


def untrained_two_tower(
    inputs: ModelInputs, config: TwoTowerConfig, run: TrainingRun, split: FitSplit = "train"
) -> TwoTower:
    """Build a model that knows how often each item occurs in a split, on the host."""
    counts = inputs.item_counts(split)
    torch.manual_seed(run.seed)
    return TwoTower(config, inputs.sizes, inputs.catalogue, counts)


def fixed_loss(
    model: TwoTower,
    loss_at: Callable[[int], Tensor],
    order: BatchOrder,
    positions: Rows,
    inputs: ModelInputs,
) -> Callable[[int], Tensor]:
    """Bring batches to one shape where a step of it needs no look at the data."""
    config, sequences = model.config, inputs.sequences
    if not model.encodes_all(order.batch_size * (1 + config.max_history)):
        return loss_at
    features = model.inputs
    names = (
        *(f"user.{name}" for name in features.user_features),
        *(f"context.{name}" for name in features.context_features),
        *([HISTORY_TYPES] if features.event_types else []),
    )
    fixed = FixedQueries.of(
        sequences,
        inputs.sizes.num_item_rows,
        positions,
        min(order.batch_size, order.num_samples),
        config.max_history,
        names,
    )
    num_rows = fixed.batch_size + fixed.num_events  # and the candidates
    if model.num_item_rows != inputs.sizes.num_item_rows or not model.encodes_all(num_rows):
        return loss_at

    def inputs_at(step: int) -> Tensor | None:
        chosen = positions[order.indices(step)]
        queries = inputs.queries(chosen, max_history=config.max_history)
        return fixed.inputs(queries, sequences.labels(chosen))

    def loss_of(batch: Tensor) -> Tensor:
        queries, labels = fixed.read(batch)
        return model.loss(queries, labels, is_cut=True)

    return FixedShapeLoss(loss_at, inputs_at, loss_of)


def fit_two_tower(
    inputs: ModelInputs,
    config: TwoTowerConfig,
    training: TrainingConfig,
    run: TrainingRun,
    stop_by: StopBy,
    *,
    split: FitSplit = "train",
    new: NewEvents | None = None,
) -> Fitted[TwoTower]:
    """Train on every label of a split, or on those that an incremental training sees."""
    sequences = inputs.sequences
    positions = sequences.label_positions(split)  # [P]
    if new is not None:
        positions = new.labels(positions, sequences)
    # An increment without new labels only takes new rows and counts.
    num_examples = len(positions) if new is None else max(1, len(positions))
    model = untrained_two_tower(inputs, config, run, split)
    # Before the model moves: its tables may be larger than one device.
    run.ranks.shard(model, training.optimizer, run.device)
    model = model.to(run.device)
    order = BatchOrder(num_examples, training.batch_size, run.seed)

    def batch_at(step: int) -> PreparedBatch:
        chosen = positions[run.ranks.part(order.indices(step))]
        queries = inputs.queries(chosen, max_history=config.max_history)
        labels = moved(sequences.labels(chosen), run.device)
        share = run.ranks.share(step, run.seed)
        return model.prepared(queries.to(run.device), labels, share, is_cut=True)

    def loss_at(step: int) -> Tensor:
        return model.loss_of(batch_at(step))

    loss: Callable[[int], Tensor] = loss_at
    if run.ranks.size > 1:
        loss = AheadLoss(batch_at, model.loss_of, run.device)
    elif run.device.type == "cuda" and len(positions):
        loss = fixed_loss(model, loss_at, order, positions, inputs)
    source = ScoredSource(model.score)
    result = fit_retriever(model, source, loss, len(positions), training, run, stop_by)
    return Fitted(model, result, len(positions))


def _fit(config: TwoTowerConfig, data: Data, until: FitSplit, start: Start, /) -> Fitted[TwoTower]:
    run, stop_by, training, new = start
    assert training is not None
    assert stop_by is not None
    return fit_two_tower(data.inputs, config, training, run, stop_by, split=until, new=new)


TWO_TOWER = ModelSpec(
    names=names.TWO_TOWER,
    config=TwoTowerConfig,
    fit=_fit,
    load=lambda folder, over: TwoTower.load(folder, over.catalogue),
    source=vector_source,
    num_examples=lambda _, sequences, split: sequences.num_labels(split),
)
