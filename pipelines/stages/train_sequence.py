"""Stage train_sequence: fit the sequence model on train, pick its steps on validation.

It is off unless ``sequence_training.enabled``; then it is measured, refitted and served with the
others.
"""

from __future__ import annotations

from pipelines.engine.stage import StageContext, StageRows
from pipelines.training.run import (
    TrainingRun,
    train_each_order,
)
from pipelines.training.sequence import fit_sequence_model
from recsys.data.windows import training_windows
from recsys.fitting.inputs import ModelInputs
from recsys.training.members import Trained


def train_sequence(context: StageContext) -> StageRows:
    """Train once for each order of tied times, or write nothing where it is off."""
    config = context.config
    if not config.sequence_training.enabled:
        return StageRows(rows_in=0, rows_out=0)

    def fit_on(inputs: ModelInputs, run: TrainingRun) -> Trained:
        num_windows = len(training_windows(inputs.sequences, "train", config.sequence.max_length))
        train_config = config.sequence_training.for_examples(num_windows)
        return fit_sequence_model(inputs, config, train_config, run, split="train")

    return train_each_order(context, "sequence", fit_on)
