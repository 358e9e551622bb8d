"""Everything that the models of one data set are fitted on and read.

Axes: P positions, U user rows, N item rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from recsys.data.batch import JaggedBatch
from recsys.data.dataset import FitSplit, Rows, Sequences
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
