"""Stage train_sequence: fit the sequence model on train, pick its steps on validation.

It is off unless ``sequence_training.enabled``; then it is measured, refitted and served with the
others.
"""

from __future__ import annotations

from pipelines.engine.stage import StageContext, StageRows
from pipelines.training.train import train_model
from recsys.fitting.sequence import SEQUENCE


def train_sequence(context: StageContext) -> StageRows:
    """Train it, or write nothing where it is off."""
    if not context.config.sequence_training.enabled:
        return StageRows(rows_in=0, rows_out=0)
    return train_model(context, SEQUENCE)
