"""Settings of the sequence model from the shape of the data.

Chosen on validation of twelve samples of 25,000 to 105,000 events and of three whole sets of
167,000 to 296,000 (tests/benchmarks/results/sequence/recipes.md). What decides is how long
histories are and whether items have texts:

- Ids alone, short histories: neighbours' ids are worth 12% on 22,000 users and twice the score on
  5,000; a softer softmax another 3%.
- Texts, short histories: with neighbours half of the passes reach the same score.
- Long histories: two blocks and a large learning rate; half of the passes cost 4%.

One validation, at the end: a best step among four is chosen by noise, a refit of as few passes on
all events loses up to 4%, and each validation costs a pass over short histories.

A second member is worth 2 to 5%, a third and a fourth together 1 to 4% more. A refit from the start
gains 8 to 32% over the model before it on short histories, and trained weights that are continued
7 to 13%; on long ones neither gains.
"""

from __future__ import annotations

from typing import NamedTuple

from pipelines.config.trainings import SequenceTrainingConfig
from recsys.models.sequence.config import SequenceConfig
from recsys.training.passes import ScheduleConfig

LONG_HISTORY = 30.0
"""Events a user from which histories count as long; sets of 7 to 9 and of 95 to 174 were tried."""
MANY_USERS = 10_000
"""Users from which a step takes more windows and a pass is worth more."""
MEMBER_DIM = 128
FULL_SOFTMAX_ITEMS = 20_000
"""Largest catalogue whose items are all ranked against a label; larger ones are sampled."""
SAMPLED_ITEMS = 8192
CALENDAR_DAYS = 140.0


class SequenceRecipe(NamedTuple):
    """How to build and how to train the sequence model."""

    model: SequenceConfig
    training: SequenceTrainingConfig


def sequence_recipe(
    *,
    num_users: int,
    num_items: int,
    mean_history: float,
    has_text: bool = False,
    has_times: bool = False,
    num_members: int = 1,
) -> SequenceRecipe:
    """Choose the sequence model's settings.

    Args:
        mean_history: Mean events of a user.
        has_text: Whether items have content vectors.
        has_times: Whether events have times, not only an order.
        num_members: Encoders side by side, trained at once; time and memory grow with them.
    """
    many = num_users >= MANY_USERS
    sampled = None if num_items <= FULL_SOFTMAX_ITEMS else SAMPLED_ITEMS
    if mean_history >= LONG_HISTORY:
        # Two blocks over the latest hundred events.
        model = SequenceConfig(
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
            num_uniform_negatives=sampled,
        )
        # A window of a hundred events has as many labels as fifteen short histories.
        return SequenceRecipe(model, _training(128 if many else 32, 20.0, 4e-3))
    # One block; without text, vectors are learned from neighbours.
    model = SequenceConfig(
        embedding_dim=num_members * MEMBER_DIM,
        num_members=num_members,
        num_neighbours=20,
        neighbour_weight=1.0 if many and not has_text else 0.5,
        dropout=0.5 if many and not has_text else 0.4,
        temperature=0.07 if has_text else (0.08 if many else 0.1),
        # On 5,000 users the calendar gained nothing.
        calendar_days=CALENDAR_DAYS if many and has_text and has_times else 0.0,
        num_uniform_negatives=sampled,
    )
    few_passes, many_passes = (7.0, 10.0) if has_text else (14.0, 20.0)
    passes = many_passes if many else few_passes
    return SequenceRecipe(model, _training(256 if many else 64, passes, 2e-3))


def _training(batch_size: int, max_epochs: float, learning_rate: float) -> SequenceTrainingConfig:
    return SequenceTrainingConfig(
        enabled=True,
        batch_size=batch_size,
        max_epochs=max_epochs,
        epochs_per_evaluation=max_epochs,
        schedule=ScheduleConfig(learning_rate=learning_rate, decay="linear", final_share=0.02),
    )
