"""What each part of a run costs in seconds on a machine, before it is run.

Every estimate is the part's arithmetic over the measured rate of this machine, divided by the share
of that rate which such code reaches (docs/decisions/automatic-preset.md has estimates beside what
the parts took); the sequence model's passes are timed on the data themselves (probe.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.auto.machine import GIB, Machine
from pipelines.auto.shape import DataShape
from recsys.models.item_weights.ease import EaseWeightsConfig, ease_bytes, ease_seconds

FACTORIZATION_RATE = 1.0
"""Cubed items a second that an inverse gets through, for each operation of a matrix product."""
EASE_START = 2.0
"""Seconds to count which items share users, and to measure."""
ENCODER_SHARE = 0.35
TOWER_SHARE = 0.12
ENCODER_PARAMETERS = 10.6e6
"""Of MiniLM without its table of words."""
CHARACTERS_PER_TOKEN = 4.5
ENCODER_START = 6.0
"""Seconds to import and load an encoder."""
EVENT_SECONDS = 2.5e-5
"""Of one event in the counting models, on one thread."""
PLACE_SECONDS = 2.5e-9
"""Of one score of one source of one query that is measured, on one thread."""
STAGE_SECONDS = 0.4
"""Of a stage that has little to do."""
PROCESS_BYTES = 1.2 * GIB
"""Of a process with torch and polars, before it reads data."""
EVENT_BYTES = 300
SOURCE_QUERY_BYTES = 200 * 12
"""Of the list of one source for one query."""


@dataclass(frozen=True)
class Costs:
    """Seconds and bytes of the parts of a run, for one log on one machine."""

    shape: DataShape
    machine: Machine

    def counting(self) -> float:
        """Popularity and item-to-item, fitted on train and on everything."""
        return 2 * (0.5 + EVENT_SECONDS * self.shape.num_events)

    def ease(self, num_items: int) -> float:
        """EASE regressed exactly on so many items, for train and for everything."""
        choosing = 3 * ease_seconds(min(num_items, EaseWeightsConfig().choice_items), self._sweeps)
        return choosing + 2 * (EASE_START + ease_seconds(num_items, self._sweeps))

    @property
    def _sweeps(self) -> float:
        return FACTORIZATION_RATE * self.machine.flops

    def encoding(self) -> float:
        """MiniLM over every text."""
        texts = self.shape.text_share * self.shape.num_items
        tokens = texts * (2 + self.shape.text_characters / CHARACTERS_PER_TOKEN)
        arithmetic = 2 * ENCODER_PARAMETERS * tokens
        return ENCODER_START + arithmetic / (ENCODER_SHARE * self.machine.flops)

    def two_tower(self, num_steps: int, batch_size: int, num_candidates: int, dim: int) -> float:
        """Train a two-tower for so many steps, and refit it for as many."""
        history = min(self.shape.mean_length, 50.0)
        row = 2 * dim * (num_candidates + 4 * dim) + 8 * history * dim
        arithmetic = 3 * float(row) * batch_size * num_steps
        return 2 * (3.0 + arithmetic / (TOWER_SHARE * self.machine.flops))

    def measuring(self, num_sources: int, num_queries: int) -> float:
        """Blend, evaluate, refit what counts, check and write a bundle."""
        queries = min(self.shape.num_held_out, num_queries)
        places = 3.0 * queries * self.shape.num_items * (num_sources + 2)
        lists = 3.0 * queries * (num_sources + 2) * 3e-4
        return 8 * STAGE_SECONDS + PLACE_SECONDS * places + lists

    def largest_ease(self, memory: float) -> int:
        """Return how many items EASE can regress exactly on in so many bytes."""
        fits = [number for number in range(0, 51_000, 500) if ease_bytes(number) <= memory]
        return fits[-1] if fits else 0

    def bytes_needed(self, num_sources: int) -> float:
        """What the process needs whatever is trained."""
        queries = min(self.shape.num_held_out, 20_000)
        lists = SOURCE_QUERY_BYTES * queries * num_sources
        return PROCESS_BYTES + EVENT_BYTES * self.shape.num_events + lists
