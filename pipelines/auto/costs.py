"""Estimates of the seconds of each part of a run on a machine.

Each estimate was measured once on a machine whose matrix products ran at ``REFERENCE``, and is
scaled by the rate that is measured now; arithmetic of matrix products is divided by that rate.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.auto.machine import Machine
from pipelines.auto.shape import DataShape
from pipelines.engine.memory import GIB
from recsys.models.configs import TwoTowerConfig
from recsys.models.item_weights.ease import ease_bytes, ease_seconds
from recsys.models.sequence.config import SequenceConfig
from recsys.training.passes import TrainingConfig

REFERENCE = 2.0e11
"""Operations a second of the machine that the seconds below were measured on: two cores."""
EASE_START = 3.0
"""Seconds to count which items share users, and to measure."""
ENCODER_SHARE = 0.45
"""Share of the measured rate that an encoder reaches."""
ENCODER_OPERATIONS = 21e6
"""Operations of MiniLM per token."""
CHARACTERS_PER_TOKEN = 4.5
ENCODER_START = 2.0
"""Seconds to load an encoder."""
COUNT_SECONDS, KNN_SECONDS = 5e-6, 2e-5
"""Seconds of one event in popularity and item-to-item, and in item k-nearest neighbours."""
SEARCH_SECONDS, SEARCH_CHARACTER = 12.0, 0.1
"""Seconds to fit a search by text, and those for each character of the mean text."""
SEARCH_ITEMS = 500
"""Items from which it takes that; fewer have as much less to learn from."""
LABEL_SECONDS = 1.0e-4
"""Seconds of one label in the two-tower, for short histories."""
SOFTMAX_SHARE = 0.5
"""Share of the measured rate that the scores of the sequence model's softmax reach."""
SCORE_SECONDS = 2.5e-9
"""Further seconds of one such score: exponentials, masks."""
BLOCK_SECONDS = 2.2e-5
"""Seconds of one event in one block of width 64."""
VALIDATION_SECONDS = 2.0
"""Seconds of one validation of a training, over 10,000 items."""
PLACE_SECONDS = 6e-9
"""Seconds of one score of one source of one measured query."""
LIST_SECONDS = 1.3e-4
"""Seconds to merge the list of one source of one query."""
STAGE_SECONDS = 0.4
"""Seconds of a stage that has little to do."""
PROCESS_BYTES = 1.2 * GIB
"""Bytes of a process with torch and polars, before it reads data."""
EVENT_BYTES = 300
SOURCE_QUERY_BYTES = 200 * 12
"""Bytes of the list of one source for one query."""


@dataclass(frozen=True)
class Costs:
    """Seconds and bytes of the parts of a run, for one log on one machine."""

    shape: DataShape
    machine: Machine

    @property
    def slower(self) -> float:
        """Times that this machine takes the seconds of the reference."""
        return REFERENCE / self.machine.flops

    def counting(self) -> float:
        """Popularity and item-to-item, or repeats, fitted on train and on everything."""
        return self.slower * 2 * (0.5 + COUNT_SECONDS * self.shape.num_events)

    def item_knn(self) -> float:
        """Item k-nearest neighbours, fitted on train and on everything."""
        return self.slower * 2 * (1.0 + KNN_SECONDS * self.shape.num_events)

    def search(self) -> float:
        """Fit what searches by a text."""
        whole = SEARCH_SECONDS + SEARCH_CHARACTER * self.shape.text_characters
        return self.slower * whole * min(1.0, self.shape.num_items / SEARCH_ITEMS)

    def ease(self, num_items: int) -> float:
        """EASE regressed exactly on a number of items, for train and for everything."""
        return 2 * (self.slower * EASE_START + ease_seconds(num_items, self.machine.flops))

    def largest_ease(self, memory: float) -> int:
        """Return how many items EASE can regress exactly on in this memory."""
        fits = [number for number in range(0, 51_000, 500) if ease_bytes(number) <= memory]
        return fits[-1] if fits else 0

    def encoding(self) -> float:
        """MiniLM over every text."""
        texts = self.shape.text_share * self.shape.num_items
        tokens = texts * (2 + self.shape.text_characters / CHARACTERS_PER_TOKEN)
        rate = ENCODER_SHARE * self.machine.flops
        return self.slower * ENCODER_START + ENCODER_OPERATIONS * tokens / rate

    def sequence_pass(self, config: SequenceConfig) -> float:
        """One pass of the sequence model over all events, each of which is a label."""
        ranked = min(self.shape.num_items, config.num_uniform_negatives or self.shape.num_items)
        arithmetic = 6.0 * ranked * config.embedding_dim / (SOFTMAX_SHARE * self.machine.flops)
        scores = SCORE_SECONDS * ranked * config.num_members
        blocks = BLOCK_SECONDS * config.num_blocks * config.embedding_dim / 64
        return self.shape.num_events * (arithmetic + self.slower * (scores + blocks))

    def validations(self, training: TrainingConfig) -> float:
        """All validations of a training."""
        users = min(self.shape.num_held_out, training.validation_users) / 5_000
        one = VALIDATION_SECONDS * users * max(0.1, self.shape.num_items / 10_000)
        return self.slower * one * training.max_epochs / training.epochs_per_evaluation

    def two_tower(self, config: TwoTowerConfig, training: TrainingConfig) -> float:
        """Train a two-tower and refit it."""
        history = min(self.shape.mean_length, config.max_history) / 20
        label = LABEL_SECONDS * max(1.0, history)
        one = self.slower * label * self.shape.num_events * training.max_epochs
        return 2 * min(one, training.max_seconds or one)

    def measuring(self, num_sources: int, num_measured: int, num_blended: int) -> float:
        """Blend, evaluate, refit what counts, check and write a bundle, for at most these users."""
        held_out = self.shape.num_held_out
        queries = 2 * min(held_out, num_measured) + 2 * min(held_out, num_blended)
        each = PLACE_SECONDS * self.shape.num_items + LIST_SECONDS
        return self.slower * (10 * STAGE_SECONDS + queries * num_sources * each)

    def bytes_needed(self, num_sources: int) -> float:
        """Bytes that the process needs for any plan."""
        queries = min(self.shape.num_held_out, 20_000)
        lists = SOURCE_QUERY_BYTES * queries * num_sources
        return PROCESS_BYTES + EVENT_BYTES * self.shape.num_events + lists
