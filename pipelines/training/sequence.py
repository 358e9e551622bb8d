"""TODO-DOC."""

from __future__ import annotations

from dataclasses import replace
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
from recsys.data.windows import training_windows
from recsys.fitting.inputs import ModelInputs
from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.model import SequenceModel
from recsys.training.loop import TrainConfig
from recsys.training.members import Trained, member_seed, train_members
from recsys.training.progress import Tracker


class MemberCurve:
    """Tells a member's numbers under its own names."""

    def __init__(self, curve: Tracker, number: int) -> None:
        self._curve, self._name = curve, f"member {number + 1}"

    def log(self, step: int, **values: float) -> None:
        self._curve.log(step, **{f"{self._name}/{name}": value for name, value in values.items()})


def fit_sequence_model(
    inputs: ModelInputs,
    config: RunConfig,
    train_config: TrainConfig,
    run: TrainingRun,
    *,
    split: Literal["train", "all"],
) -> Trained:
    """Train on every position of a split's windows; on ``train`` validation picks the weights."""
    settings = config.sequence
    if not config.evaluation.exclude_history:
        # Lists may repeat the history, so its items stand against the label too.
        settings = replace(settings, leave_out_history=False)
    training, device = config.sequence_training, training_device(config.sequence_training)
    windows = training_windows(inputs.sequences, split, settings.max_length)

    def fit_one(part: SequenceConfig, number: int | None) -> Trained:
        seed = member_seed(config.seed, number or 0)
        torch.manual_seed(seed)
        counts = inputs.item_counts(split)
        model = SequenceModel(part, inputs.sizes, inputs.catalogue, counts).to(device)
        order = BatchOrder(len(windows), training.batch_size, seed)

        def loss_at(step: int) -> torch.Tensor:
            batch = windows.batch(inputs.sequences, order.indices(step))
            return model.loss(batch.to(device))

        evaluate = None
        if split == "train":
            evaluate = validation_metrics(inputs, config, training, model.score)
        own = run if number is None else member_run(run, number)
        return model, fit(model, loss_at, training, train_config, own, evaluate)

    return train_members(settings, fit_one)


def member_run(run: TrainingRun, number: int) -> TrainingRun:
    """Keep a member's state apart; the first one's curve stands for the model's."""
    curve = run.curve if number == 0 else MemberCurve(run.curve, number)
    return TrainingRun(run.checkpoint_dir / f"member-{number}", run.progress, curve)
