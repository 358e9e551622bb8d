"""Settings of the sequence model for a log, by what the log is like."""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.auto.shape import DataShape
from pipelines.config.run import SequenceTrainingConfig
from recsys.models.sequence.config import SequenceConfig
from recsys.training.optim import ScheduleConfig

MANY_USERS = 10_000
"""Users from which on a step takes more of them at once."""
LONG = 30.0
"""Mean events of a user from which on histories are long."""


@dataclass(frozen=True, kw_only=True)
class SequenceRecipe:
    """A model and its training."""

    model: SequenceConfig
    training: SequenceTrainingConfig
    why: str


def sequence_recipe(shape: DataShape) -> SequenceRecipe:
    """Choose settings by the length of histories and by what is known of items."""
    if shape.mean_length >= LONG:
        return SequenceRecipe(
            model=SequenceConfig(
                embedding_dim=128,
                num_blocks=2,
                num_heads=2,
                max_length=100,
                dropout=0.3,
                content_weight=1.0,
                label_smoothing=0.1,
            ),
            training=SequenceTrainingConfig(
                enabled=True,
                batch_size=32,
                max_epochs=20.0,
                epochs_per_evaluation=4.0,
                schedule=ScheduleConfig(learning_rate=4e-3, decay="linear", final_share=0.02),
                refit_epochs=2.0,
            ),
            why="long histories: two blocks that read 100 events",
        )
    return SequenceRecipe(
        model=SequenceConfig(temperature=0.07 if shape.has_text else 0.1),
        training=SequenceTrainingConfig(
            enabled=True,
            batch_size=64 if shape.num_users < MANY_USERS else 256,
            max_epochs=7.0 if shape.has_text else 14.0,
            epochs_per_evaluation=3.5,
            refit_epochs=2.0,
        ),
        why="short histories: one block, much dropout",
    )
