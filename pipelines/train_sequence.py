"""Stage train_sequence: fit the sequence model on train, pick its steps on validation.

It is off unless ``sequence_training.enabled``; then it is measured, refitted and served with the
others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch

from pipelines.config import RunConfig
from pipelines.model_inputs import ModelInputs
from pipelines.stage import StageContext, StageRows
from pipelines.training import (
    TrainingRun,
    count_items,
    fit,
    train_each_order,
    training_device,
    validation_metrics,
)
from recsys.data.order import BatchOrder
from recsys.data.windows import training_windows
from recsys.models.sequence import SequenceModel
from recsys.training.loop import TrainConfig, TrainResult


def make_sequence_model(
    inputs: ModelInputs, config: RunConfig, split: Literal["train", "all"], device: torch.device
) -> SequenceModel:
    """Build an untrained model that knows how often each item occurs in its split."""
    settings = config.sequence
    if not config.evaluation.exclude_history:
        # Lists may repeat the history, so its items stand against the label too.
        settings = replace(settings, leave_out_history=False)
    counts = count_items(inputs, split)
    torch.manual_seed(config.seed)
    return SequenceModel(settings, inputs.sizes, inputs.catalogue, counts).to(device)


def fit_sequence_model(
    inputs: ModelInputs,
    config: RunConfig,
    train_config: TrainConfig,
    run: TrainingRun,
    *,
    split: Literal["train", "all"],
) -> tuple[SequenceModel, TrainResult]:
    """Train on every position of a split's windows; on ``train`` validation picks the weights."""
    training, max_length = config.sequence_training, config.sequence.max_length
    device = training_device(training)
    windows = training_windows(inputs.sequences, split, max_length)
    model = make_sequence_model(inputs, config, split, device)
    order = BatchOrder(len(windows), training.batch_size, config.seed)

    def loss_at(step: int) -> torch.Tensor:
        batch = windows.batch(inputs.sequences, order.indices(step))
        return model.loss(batch.to(device))

    evaluate = None
    if split == "train":
        evaluate = validation_metrics(inputs, config, training, model.score)
    return model, fit(model, loss_at, training, train_config, run, evaluate)


def train_sequence(context: StageContext) -> StageRows:
    """Train once for each order of tied times, or write nothing where it is off."""
    config = context.config
    if not config.sequence_training.enabled:
        return StageRows(rows_in=0, rows_out=0)

    def fit_on(inputs: ModelInputs, run: TrainingRun) -> tuple[SequenceModel, TrainResult]:
        num_windows = len(training_windows(inputs.sequences, "train", config.sequence.max_length))
        train_config = config.sequence_training.for_examples(num_windows)
        return fit_sequence_model(inputs, config, train_config, run, split="train")

    return train_each_order(context, "sequence", fit_on)
