"""Estimates of a policy's value from another policy's log.

Each gives the mean reward of a list, with what every list contributes to its error, from which
`interval_of` takes the interval. With weights w, rewards r, a reward
model's prediction q for the logged item and v, its mean over the evaluated policy:

    ips     mean w r                          (Horvitz and Thompson, 1952)
    snips   sum w r / sum w                   (Swaminathan and Joachims, NeurIPS 2015)
    dr      mean v + w (r - q)                (Dudik, Langford and Li, ICML 2011, arXiv:1103.4601),
            slot by slot in lists             (Kiyohara et al., WSDM 2022, arXiv:2202.01562)

IPS and DR need right propensities; of DR the reward model may be wrong.

Axes: n lists, K slots (1 of single actions), A actions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from recsys.evaluation.intervals import moment, skewed_ends
from recsys.evaluation.off_policy.logs import Floats, Integers, Mask

NUM_FOLDS, STRENGTH = 5, 5.0
"""Parts of the groups; expected rewards that an item's own count for as much as the average."""


class Estimate(NamedTuple):
    """A value, and what its interval is made from."""

    value: float
    influence: Floats
    """Influence of each list, mean 0: growth of the value with more of that list, [n]."""


class ValueInterval(NamedTuple):
    """An interval, and the standard error that it is made from."""

    low: float
    high: float
    standard_error: float


def interval_of(
    estimate: Estimate, *, confidence: float = 0.95, users: Integers | None = None
) -> ValueInterval:
    """Compute the interval of a value whose sample size was settled before.

    The error of an estimate is, to first order, a mean of contributions, one a list. Lists of one
    user are alike, so contributions are summed by user before their variance is taken (Liang and
    Zeger, 1986). Weights have long tails to one side, of which the variance is itself uncertain:
    the degrees of freedom are those that the contributions' kurtosis leaves, 2 n / (kurtosis - 1)
    (Satterthwaite, 1946), never more than n - 1.

    Args:
        users: Number of each list's user, [n]; None has lists as independent.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    parts = estimate.influence
    if users is not None:
        if users.shape != parts.shape:
            raise ValueError(f"users must have shape {parts.shape}, got {users.shape}")
        _, owners = np.unique(users, return_inverse=True)
        parts = np.bincount(owners, estimate.influence).astype(np.float64)
    number = len(parts)
    if number < 2:
        raise ValueError(
            f"an interval needs at least 2 independent lists or users, got {number}; log more"
        )
    error = math.sqrt(float((parts**2).sum()) * number / (number - 1)) / len(estimate.influence)
    # As many draws of a normal would tell their variance as well as the parts do theirs.
    degrees = min(number - 1.0, 2 * number / max(moment(parts, 4) - 1, 1e-9))
    return ValueInterval(*skewed_ends(estimate.value, error, parts, confidence, degrees), error)


def mean_of(terms: Floats) -> Estimate:
    """Estimate a mean of terms, [n]."""
    value = float(terms.mean())
    return Estimate(value, terms - value)


def ips(rewards: Floats, weights: Floats) -> Estimate:
    """Weigh rewards, [n, K] each."""
    _check(rewards, weights=weights)
    return mean_of((weights * rewards).sum(1))


def snips(rewards: Floats, weights: Floats, present: Mask | None = None) -> Estimate:
    """Weigh rewards, and divide each slot by the mean of its weights.

    A slot whose weights are all 0 has no value: it counts as 0, which the overlap shows.

    Args:
        present: Which slots lists have, all by default, [n, K].
    """
    _check(rewards, weights=weights)
    there = np.ones(rewards.shape, np.bool_) if present is None else present
    counted = np.where(there, weights, 0.0)
    totals = counted.sum(0)
    totals = np.where(totals > 0, totals, 1.0)
    means = (counted * rewards).sum(0) / totals
    # Shares of lists that have the slot vary too.
    shares = there.mean(0)
    parts = shares * counted * (rewards - means) / (totals / len(rewards))
    return Estimate(float((shares * means).sum()), (parts + (there - shares) * means).sum(1))


def cascade_doubly_robust(
    rewards: Floats, slot_weights: Floats, predicted: Floats, expected: Floats
) -> Estimate:
    """Correct a reward model slot by slot, for rewards that depend on the items down to their slot.

    The mean of ``w_1..w_k (r_k - Q_k) + w_1..w_(k-1) V_k`` over lists, summed over slots. What
    follows a list's end must be 0 in rewards, predicted and expected, and 1 in the weights.
    """
    _check(rewards, slot_weights=slot_weights, predicted=predicted, expected=expected)
    weights = slot_weights.cumprod(1)
    above = np.ones_like(weights)
    above[:, 1:] = weights[:, :-1]
    return mean_of((weights * (rewards - predicted) + above * expected).sum(1))


def _check(rewards: Floats, **others: Floats) -> None:
    if rewards.ndim != 2 or not len(rewards):
        raise ValueError(f"rewards must be [lists, slots] with a list, got shape {rewards.shape}")
    for name, values in {"rewards": rewards, **others}.items():
        if values.shape != rewards.shape:
            raise ValueError(f"{name} must have shape {rewards.shape}, got {values.shape}")
        if not np.isfinite(values).all():
            at = np.argwhere(~np.isfinite(values))[0].tolist()
            raise ValueError(f"{name} must be finite, got {values[tuple(at)]} at {at}")


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
        """Count; no list at all gives rates of 0."""
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


def fold_of(groups: Integers) -> Integers:
    """Return the fold of each list's group, such as its user, [n]."""
    _, owners = np.unique(groups, return_inverse=True)
    shuffled = np.random.default_rng(0).permutation(owners.max(initial=0) + 1)
    found: Integers = (shuffled[owners] % NUM_FOLDS).astype(np.int64)
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
