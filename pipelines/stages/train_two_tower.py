"""Stage train_two_tower: fit the two-tower on train, pick its number of steps on validation."""

from __future__ import annotations

from pipelines.engine.stage import StageContext, StageRows
from pipelines.training.train import train_model
from recsys.fitting.two_tower import TWO_TOWER


def train_two_tower(context: StageContext) -> StageRows:
    """Train it, or write nothing where it is off."""
    if not context.config.two_tower_training.enabled:
        return StageRows(rows_in=0, rows_out=0)
    return train_model(context, TWO_TOWER)
