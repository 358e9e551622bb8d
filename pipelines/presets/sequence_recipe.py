"""Settings of the sequence model from the shape of the data, for data that nobody has tuned on.

Chosen on validation of twelve samples of 25,000 to 105,000 events and of three whole sets of
167,000 to 296,000 (tests/benchmarks/results/sequence/recipes.md). What decides is how long
histories are and whether items have texts:

- Ids alone, short histories: neighbours' ids are worth 12% on 22,000 users and twice the score on
  5,000; a softer softmax another 3%.
- Texts, short histories: with neighbours half of the passes reach the same score.
- Long histories: two blocks and a large learning rate; half of the passes cost 4%.

A second member is worth 2 to 5%, a third and a fourth together 1 to 4% more. A refit from the start
gains 8 to 32% over the model before it on short histories, and trained weights that are continued
7 to 13%; on long ones neither gains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pipelines.config.run import SequenceTrainingConfig
from recsys.models.sequence.config import SequenceConfig
from recsys.training.optim import ScheduleConfig

LONG_HISTORY = 30.0
"""Events a user from which histories count as long; sets of 7 to 9 and of 95 to 174 were tried."""
MANY_USERS = 10_000
"""Users from which a step takes more windows and a pass says more."""
MEMBER_DIM = 128
FULL_SOFTMAX_ITEMS = 20_000
"""Items up to which every item stands against a label; more are sampled, for the time."""
SAMPLED_ITEMS = 8192
EVALUATIONS = 4
"""Validations of a training: each costs about as much as a pass over short histories."""
CALENDAR_DAYS = 140.0


@dataclass(frozen=True, kw_only=True)
class DataShape:
    """What a recipe is chosen by: the events that the model is fitted on.

    Raises:
        ValueError: There is no user, item or event.
    """

    num_users: int
    num_items: int
    num_events: int
    has_text: bool = False
    """Whether items have content vectors."""
    has_times: bool = False
    """Whether events have times, not only an order."""

    def __post_init__(self) -> None:
        for name in ("num_users", "num_items", "num_events"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")

    @property
    def mean_history(self) -> float:
        """Return the mean number of events of a user."""
        return self.num_events / self.num_users

    @property
    def has_long_histories(self) -> bool:
        """Say whether users have many events each."""
        return self.mean_history >= LONG_HISTORY

    @property
    def has_many_users(self) -> bool:
        """Say whether there are enough users for large batches."""
        return self.num_users >= MANY_USERS


class SequenceRecipe(NamedTuple):
    """How to build and how to train the sequence model."""

    model: SequenceConfig
    training: SequenceTrainingConfig


def sequence_recipe(shape: DataShape, *, num_members: int = 1) -> SequenceRecipe:
    """Choose the sequence model's settings.

    Args:
        shape: Of the data.
        num_members: Encoders side by side, trained at once; time and memory grow with them.

    Raises:
        ValueError: num_members is less than 1.
    """
    if num_members < 1:
        raise ValueError(f"num_members must be >= 1, got {num_members}")
    if shape.has_long_histories:
        return SequenceRecipe(_long_model(shape, num_members), _long_training(shape))
    return SequenceRecipe(_short_model(shape, num_members), _short_training(shape))


def _negatives(shape: DataShape) -> int | None:
    return None if shape.num_items <= FULL_SOFTMAX_ITEMS else SAMPLED_ITEMS


def _short_model(shape: DataShape, num_members: int) -> SequenceConfig:
    """One block; what is not text is learnt from neighbours."""
    many, text = shape.has_many_users, shape.has_text
    return SequenceConfig(
        embedding_dim=num_members * MEMBER_DIM,
        num_members=num_members,
        num_neighbours=20,
        neighbour_weight=1.0 if many and not text else 0.5,
        dropout=0.5 if many and not text else 0.4,
        temperature=0.07 if text else (0.08 if many else 0.1),
        # On 5,000 users the calendar gained nothing.
        calendar_days=CALENDAR_DAYS if many and text and shape.has_times else 0.0,
        num_uniform_negatives=_negatives(shape),
    )


def _short_training(shape: DataShape) -> SequenceTrainingConfig:
    many, text = shape.has_many_users, shape.has_text
    few_passes, many_passes = (7.0, 10.0) if text else (14.0, 20.0)
    return _training(
        batch_size=256 if many else 64,
        max_epochs=many_passes if many else few_passes,
        learning_rate=2e-3,
    )


def _long_model(shape: DataShape, num_members: int) -> SequenceConfig:
    """Two blocks over the latest hundred events."""
    return SequenceConfig(
        embedding_dim=num_members * MEMBER_DIM,
        num_members=num_members,
        num_blocks=2,
        num_heads=2,
        max_length=100,
        num_neighbours=20,
        neighbour_weight=4.0,
        dropout=0.3,
        content_weight=1.0,
        label_smoothing=0.1,
        num_uniform_negatives=_negatives(shape),
    )


def _long_training(shape: DataShape) -> SequenceTrainingConfig:
    # A window of a hundred events has as many labels as fifteen short histories.
    return _training(
        batch_size=128 if shape.has_many_users else 32, max_epochs=20.0, learning_rate=4e-3
    )


def _training(
    *, batch_size: int, max_epochs: float, learning_rate: float
) -> SequenceTrainingConfig:
    return SequenceTrainingConfig(
        enabled=True,
        batch_size=batch_size,
        max_epochs=max_epochs,
        epochs_per_evaluation=max_epochs / EVALUATIONS,
        patience=EVALUATIONS,
        schedule=ScheduleConfig(learning_rate=learning_rate, decay="linear", final_share=0.02),
    )
