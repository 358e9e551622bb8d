"""Popularity with a half-life: what everyone took lately, the fallback that always has a list.

An event that is ``age`` days older than the newest one counts 2 ** (-age / half_life_days).
Events without times cannot age, so all of them count once there, with any half-life.

Axes: B queries, E events, N item rows (row 0 is padding and scores -inf).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from recsys.data.batch import JaggedBatch
from recsys.models.configs import PopularityConfig

Rows = NDArray[np.int64]
SECONDS_PER_DAY = 86_400
MAX_HALF_LIVES = 60.0
"""Older events count as if they were so old: float32 still holds the order of items that have no
others, as if a log of years ago continues today."""


class Popularity:
    """Scores every item by its decayed number of events, the same for every query."""

    def __init__(self, config: PopularityConfig, item_scores: Tensor) -> None:
        """Take the decayed count of each item row, [N] float32."""
        self.config = config
        self.item_scores = item_scores.clone()
        self.item_scores[0] = -torch.inf

    def to(self, device: torch.device) -> Popularity:
        return Popularity(self.config, self.item_scores.to(device))

    @classmethod
    def fit(
        cls,
        parts: Callable[[], Iterator[tuple[Rows, Rows | None]]],
        num_item_rows: int,
        config: PopularityConfig,
    ) -> Popularity:
        """Count the events that a model may see, which are read twice.

        Args:
            parts: Item of each event and unix seconds, [E] each; without times nothing decays.
                Events may be in any order and in any number of parts.
            num_item_rows: Item rows with row 0; items without an event score 0.
        """
        newest = [int(times.max()) for _, times in parts() if times is not None and len(times)]
        counts = np.zeros(num_item_rows)  # [N]
        for item_rows, times in parts():
            weights: NDArray[np.float64] | float = 1.0
            if times is not None and config.half_life_days is not None and len(times):
                age_days = (max(newest) - times) / SECONDS_PER_DAY
                weights = np.exp2(-np.minimum(age_days / config.half_life_days, MAX_HALF_LIVES))
            # Adds one event after another, so that parts change no rounding.
            np.add.at(counts, item_rows, weights)
        return cls(config, torch.from_numpy(counts.astype(np.float32)))

    @property
    def num_item_rows(self) -> int:
        return len(self.item_scores)

    def score(self, queries: JaggedBatch) -> Tensor:
        """Repeat the items' scores for each query, [B, N]; a view, so do not write into it."""
        return self.item_scores.expand(queries.batch_size, -1)

    def save(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        save_file({"item_scores": self.item_scores}, directory / "popularity.safetensors")
        (directory / "config.json").write_text(json.dumps(asdict(self.config), indent=2) + "\n")

    @classmethod
    def load(cls, directory: Path) -> Popularity:
        config = PopularityConfig(**json.loads((directory / "config.json").read_text()))
        return cls(config, load_file(directory / "popularity.safetensors")["item_scores"])
