"""TODO-DOC."""

from __future__ import annotations

from typing import Literal

import torch

from pipelines.config.run import RunConfig
from pipelines.training.run import (
    TrainingRun,
    fit,
    training_device,
    validation_metrics,
)
from recsys.data.order import BatchOrder
from recsys.fitting.inputs import ModelInputs
from recsys.models.two_tower import TwoTower
from recsys.training.loop import TrainConfig, TrainResult


def make_two_tower(
    inputs: ModelInputs, config: RunConfig, split: Literal["train", "all"], device: torch.device
) -> TwoTower:
    """Build an untrained model that knows how often each item occurs in its split."""
    counts = inputs.item_counts(split)
    torch.manual_seed(config.seed)
    return TwoTower(config.two_tower, inputs.sizes, inputs.catalogue, counts).to(device)


def fit_two_tower(
    inputs: ModelInputs,
    config: RunConfig,
    train_config: TrainConfig,
    run: TrainingRun,
    *,
    split: Literal["train", "all"],
) -> tuple[TwoTower, TrainResult]:
    """Train on the labels of a split; on ``train`` the validation split picks the best weights."""
    training, max_history = config.training, config.two_tower.max_history
    device = training_device(training)
    sequences = inputs.sequences
    positions = sequences.label_positions(split)
    model = make_two_tower(inputs, config, split, device)
    order = BatchOrder(len(positions), training.batch_size, config.seed)

    def loss_at(step: int) -> torch.Tensor:
        chosen = positions[order.indices(step)]
        queries = inputs.queries(chosen, max_history=max_history)
        return model.loss(queries.to(device), sequences.labels(chosen).to(device))

    evaluate = None
    if split == "train":
        evaluate = validation_metrics(inputs, config, training, model.score)
    return model, fit(model, loss_at, training, train_config, run, evaluate)
