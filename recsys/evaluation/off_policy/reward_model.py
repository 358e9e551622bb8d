"""A reward model for the estimators that need one: an item's rate times its slot's.

    q(item, slot) = rate(slot) * (rewards of the item + s) / (rewards expected of the item + s)

where the expected ones are those of average items in the slots in which the item was shown, and s
expected rewards hold rare items to the average. Lists are predicted by a model that was fitted on
other lists, so that it does not repeat their rewards (cross-fitting; Chernozhukov et al., 2018).

Axes: n lists, K slots, N item rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recsys.evaluation.off_policy.logs import Floats, Integers, Mask

STRENGTH = 5.0
"""Expected rewards that an item's own count for as much as the average."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RateModel:
    """Rates of slots and items."""

    slots: Floats
    """Mean reward of each slot, [K]."""
    items: Floats
    """Factor of each item row, 1 for one that was never shown, [N]."""

    @classmethod
    def fit(
        cls,
        items: Integers,
        rewards: Floats,
        present: Mask,
        num_item_rows: int,
        strength: float = STRENGTH,
    ) -> RateModel:
        """Count; no list at all gives rates of 0.

        Args:
            items: Item rows, 0 where none is known, [n, K].
        """
        earned = np.where(present, rewards, 0.0)
        slots = earned.sum(0) / np.maximum(present.sum(0), 1)
        rows = items[present]
        expected = np.bincount(
            rows, np.broadcast_to(slots, items.shape)[present], minlength=num_item_rows
        )
        own = np.bincount(rows, earned[present], minlength=num_item_rows)
        return cls(slots=slots, items=(own + strength) / (expected + strength))

    def rates(self, items: Integers) -> Floats:
        """Predict the reward of items in their slots, [..., K]."""
        found: Floats = self.items[items] * self.slots
        return found

    @property
    def below(self) -> Floats:
        """Mean reward of all slots below each, [K]."""
        found: Floats = self.slots.sum() - self.slots.cumsum()
        return found


def fold_of(groups: Integers, num_folds: int = 5) -> Integers:
    """Give each list the fold of its group, such as its user, [n]."""
    if num_folds < 2:
        raise ValueError(f"num_folds must be at least 2, got {num_folds}")
    _, owners = np.unique(groups, return_inverse=True)
    shuffled = np.random.default_rng(0).permutation(owners.max(initial=0) + 1)
    found: Integers = (shuffled[owners] % num_folds).astype(np.int64)
    return found


def fitted_folds(
    items: Integers, rewards: Floats, present: Mask, num_item_rows: int, folds: Integers
) -> list[RateModel]:
    """Fit a model for each fold, on all lists outside it."""
    return [
        RateModel.fit(
            items[folds != fold], rewards[folds != fold], present[folds != fold], num_item_rows
        )
        for fold in range(int(folds.max()) + 1)
    ]
