"""The shape of a log of events, and the settings of the sequence model that follow from it.

The settings were chosen on validation of twelve samples of 25,000 to 105,000 events and of three
whole sets of 167,000 to 296,000 (tests/benchmarks/results/sequence/recipes.md). What decides is how
long histories are and whether items have texts:

- Ids alone, short histories: neighbours' ids are worth 12% on 22,000 users and twice the score on
  5,000; a softer softmax another 3%.
- Texts, short histories: with neighbours half of the passes reach the same score.
- Long histories: two blocks and a large learning rate; half of the passes cost 4%.

One validation, at the end: a best step among four is chosen by noise, a refit of as few passes on
all events loses up to 4%, and each validation costs a pass over short histories.

A second member is worth 2 to 5%, a third and a fourth together 1 to 4% more. A refit from the start
gains 8 to 32% over the model before it on short histories, and trained weights that are continued
7 to 13%; on long ones neither gains.

Axes: E events, U user rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from pipelines.config.content import ContentConfig
from pipelines.config.trainings import SequenceTrainingConfig
from pipelines.engine.artifacts import read_json
from pipelines.inputs.content_models import describe_item
from recsys.data.dataset import HeldOut, Rows, Sequences
from recsys.fitting.queries import GIVEN
from recsys.models.sequence.config import SequenceConfig
from recsys.training.passes import ScheduleConfig

DAY = 86_400
TEXTS_READ = 2_000
"""Items whose texts are read to estimate how long the others are."""
MIN_HELD_OUT = 30
"""Users with a held-out event, below which nothing can be chosen by validation."""
MIN_TRAINED_EVENTS = 500
"""Events below which a trained model has nothing to learn from."""


@dataclass(frozen=True, kw_only=True)
class DataShape:
    """Counts of one features artefact."""

    num_events: int
    num_users: int
    num_items: int
    num_cold: int
    """Items of the catalogue without an event."""
    mean_length: float
    """Events of a user."""
    long_length: int
    """Events that nine users in ten do not exceed."""
    by_time: bool
    """True if models are judged by the events after a moment; else by each user's last event."""
    judged_by: str
    """Which events those are, and why."""
    num_held_out: int
    """Users with a validation event: what models are chosen and weighted by."""
    repeat_share: float
    """Share of the held-out events whose item the user had before."""
    text_share: float
    """Share of the items with a text."""
    text_characters: float
    """Mean characters of a text."""
    num_categories: int
    num_days: int
    """Days with an event; 0 where events have no times."""
    kinds: Mapping[str, int] = field(default_factory=dict)
    """Events of each type."""

    @property
    def has_times(self) -> bool:
        return self.num_days > 0

    @property
    def num_known(self) -> int:
        """Items with an event."""
        return self.num_items - self.num_cold

    @property
    def has_long_histories(self) -> bool:
        return self.mean_length >= LONG_HISTORY

    @property
    def has_text(self) -> bool:
        return self.text_share > 0


def measure_shape(features: Path, content: ContentConfig) -> DataShape:
    """Count what the artefact of build_features holds."""
    sequences = Sequences.load(features / "sequences" / GIVEN)
    described, report = (read_json(features / name) for name in ("features.json", "report.json"))
    num_items = described["num_item_rows"] - 1
    lengths = np.diff(sequences.offsets)
    lengths = lengths[lengths > 0]
    share, characters = measure_texts(features / "items.parquet", content)
    times = sequences.times
    return DataShape(
        num_events=sequences.num_events,
        num_users=len(lengths),
        num_items=num_items,
        num_cold=num_items - len(np.unique(sequences.item_rows)),
        mean_length=float(lengths.mean()) if len(lengths) else 0.0,
        long_length=int(np.quantile(lengths, 0.9)) if len(lengths) else 0,
        by_time=report["split_kind"] == "global_time",
        judged_by=judged_by(report),
        num_held_out=len(HeldOut.of(sequences, "validation").positions),
        repeat_share=repeat_share(sequences),
        text_share=share,
        text_characters=characters,
        num_categories=max(0, described["num_categories"] - 1),
        num_days=0 if times is None else len(np.unique(np.asarray(times) // DAY)),
        kinds=report["event_types"],
    )


def judged_by(report: Mapping[str, Any]) -> str:
    """Describe the events that models are judged by, from the report of build_features."""
    if report["split_kind"] == "global_time":
        chosen, measured = (report[name][:10] for name in ("validation_from", "test_from"))
        return (
            f"Models are fitted on events before {chosen}, chosen by those from then on and "
            f"measured by those from {measured} on (splits.kind); released models are fitted on all"
        )
    why = report["split_reason"]
    return "Models are judged by each user's last two events" + (f", because {why}" if why else "")


def repeat_share(sequences: Sequences) -> float:
    """Share of the held-out events whose item its user had before; 0 without any."""
    positions: Rows = np.arange(sequences.num_events)
    items = np.asarray(sequences.item_rows)
    pairs = sequences.users_of(positions) * (int(items.max(initial=0)) + 1) + items
    repeats = np.ones(len(items), dtype=bool)
    repeats[np.unique(pairs, return_index=True)[1]] = False
    held_out = [sequences.label_positions(split) for split in ("validation", "test")]
    found = repeats[np.concatenate(held_out)]
    return float(found.mean()) if len(found) else 0.0


def measure_texts(items: Path, content: ContentConfig) -> tuple[float, float]:
    """Return the share of items with a text and the mean length of one, from a sample."""
    table = pl.read_parquet(items)
    step = max(1, table.height // TEXTS_READ)
    texts = [
        describe_item(item, content) for item in table.gather_every(step).iter_rows(named=True)
    ]
    lengths = [len(text) for text in texts if text]
    if not lengths:
        return 0.0, 0.0
    return len(lengths) / len(texts), sum(lengths) / len(lengths)


def enough(shape: DataShape) -> bool:
    """Return True if there is enough for a trained model to learn from and to be judged by."""
    return shape.num_events >= MIN_TRAINED_EVENTS and shape.num_held_out >= MIN_HELD_OUT


LONG_HISTORY = 30.0
"""Events a user from which histories count as long; sets of 7 to 9 and of 95 to 174 were tried."""
MANY_USERS = 10_000
"""Users from which a step takes more windows and a pass is worth more."""
MEMBER_DIM = 128
SAMPLED_SHARE, SAMPLED_ITEMS = 8, (2_048, 8_192)
"""An eighth of the catalogue is ranked against a label, within these bounds; if that is over half
of it, all of it is. On 10,000 to 15,000 items this takes a third of the time and ranks as well."""
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
    drawn = int(np.clip(num_items // SAMPLED_SHARE, *SAMPLED_ITEMS))
    sampled = None if num_items < 2 * drawn else drawn
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
