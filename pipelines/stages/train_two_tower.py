"""Stage train_two_tower: fit the two-tower on train, pick its number of steps on validation."""

from __future__ import annotations

from pipelines.engine.stage import StageContext, StageRows
from pipelines.training.run import (
    TrainingRun,
    train_each_order,
)
from pipelines.training.two_tower import fit_two_tower
from recsys.fitting.inputs import ModelInputs
from recsys.models.two_tower import TwoTower
from recsys.training.loop import TrainResult


def train_two_tower(context: StageContext) -> StageRows:
    """Train once for each order of tied times; resumes from the newest checkpoint."""
    config = context.config

    def fit_on(inputs: ModelInputs, run: TrainingRun) -> tuple[TwoTower, TrainResult]:
        num_labels = len(inputs.sequences.label_positions("train"))
        train_config = config.training.for_examples(num_labels)
        return fit_two_tower(inputs, config, train_config, run, split="train")

    return train_each_order(context, "two_tower", fit_on)
