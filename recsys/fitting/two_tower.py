"""Fit the two-tower on single labels.

Axes: P labels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recsys.data.batch import moved
from recsys.data.dataset import FitSplit, Sequences
from recsys.data.order import BatchOrder
from recsys.fitting.continued import NewEvents
from recsys.fitting.inputs import ModelInputs
from recsys.fitting.training import Fitted, StopBy, TrainingRun, fit_retriever
from recsys.models.two_tower import TwoTower, TwoTowerConfig
from recsys.retrieval.sources import ScoredSource
from recsys.training.passes import TrainingConfig


def num_labels(sequences: Sequences, split: FitSplit) -> int:
    """Count the examples of one pass."""
    return sequences.num_labels(split)


def untrained_two_tower(
    inputs: ModelInputs, config: TwoTowerConfig, run: TrainingRun, split: FitSplit = "train"
) -> TwoTower:
    """Build a model that knows how often each item occurs in a split, on the run's device."""
    counts = inputs.item_counts(split)
    torch.manual_seed(run.seed)
    return TwoTower(config, inputs.sizes, inputs.catalogue, counts).to(run.device)


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
    order = BatchOrder(num_examples, training.batch_size, run.seed)

    def loss_at(step: int) -> Tensor:
        chosen = positions[run.ranks.part(order.indices(step))]
        queries = inputs.queries(chosen, max_history=config.max_history)
        labels = moved(sequences.labels(chosen), run.device)
        share = run.ranks.share(step, run.seed)
        return model.loss(queries.to(run.device), labels, share, is_cut=True)

    source = ScoredSource(model.score)
    result = fit_retriever(model, source, loss_at, len(positions), training, run, stop_by)
    return Fitted(model, result, len(positions))
