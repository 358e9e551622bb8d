"""Everything that the models of one data set are fitted on and read.

Axes: P positions, U user rows, N item rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.batch import JaggedBatch
from recsys.data.dataset import FitSplit, Rows, Sequences
from recsys.data.windows import Windows
from recsys.models.item_tower import FeatureSizes, ItemCatalogue

GIVEN = "given"


@dataclass(frozen=True, kw_only=True)
class ModelInputs:
    """The sequences of one order of tied times, with the catalogue and the users' features."""

    sequences: Sequences
    catalogue: ItemCatalogue
    sizes: FeatureSizes
    user_features: Mapping[str, Rows] = field(default_factory=dict)
    """Categorical rows by user row, each [U]."""
    tie_order: str = GIVEN

    def queries(self, positions: Rows, *, max_history: int) -> JaggedBatch:
        """Build what was known before each event at ``positions`` [P], user features included."""
        return self.sequences.queries(
            positions, max_history=max_history, user_features=self.user_features
        )

    def item_counts(self, split: FitSplit) -> Tensor:
        """Count each item's events that a model fitted on ``split`` may see, [N]."""
        sequences = self.sequences
        return sequences.item_counts(sequences.visible_end(split), self.sizes.num_item_rows)


@dataclass(frozen=True, kw_only=True)
class NewEvents:
    """Events since the weights that a training continues."""

    starts: Rows
    """Position of each user's first new event, or the end of the user's events, [U]."""
    replay_share: float
    """Share of the older examples that are trained on as well."""
    seed: int

    def windows(self, windows: Windows, sequences: Sequences) -> Windows:
        """Keep windows that end in new events, and some of the others."""
        # A window's last event is its last label.
        is_new = windows.ends > self.starts[sequences.users_of(windows.ends - 1)]  # [W]
        kept = is_new | self._drawn(len(windows))
        return Windows(windows.starts[kept], windows.ends[kept])

    def labels(self, positions: Rows, sequences: Sequences) -> Rows:
        """Keep labels that are new, and some of the others."""
        is_new = positions >= self.starts[sequences.users_of(positions)]  # [P]
        kept: Rows = positions[is_new | self._drawn(len(positions))]
        return kept

    def _drawn(self, number: int) -> NDArray[np.bool_]:
        drawn: NDArray[np.bool_] = (
            np.random.default_rng([self.seed, number]).random(number) < self.replay_share
        )
        return drawn
