"""Compare the arms of an experiment at any time, as often as one likes.

A usual interval holds at one look that was settled before. Who looks every day and stops at the
first difference calls equal arms different far more often than in 5% of experiments. A confidence
sequence holds at all looks together: with the stated confidence it covers the true difference from
the first user to the last, so one may look, stop and continue at will.

Differences of means use the asymptotic confidence sequence of Waudby-Smith, Arbour, Sinha, Kennedy
and Ramdas (arXiv:2103.06476, theorem 2.2), which needs no bound on outcomes: after n users of both
arms, with V the estimated variance of the difference,

    difference +- sqrt(V * (2 (n rho^2 + 1) / (n rho^2)) * ln(sqrt(n rho^2 + 1) / error))

It is the mixture of Robbins (1970) of the mSPRT, whose prior is here in units of standard
deviations and so needs no knowledge of the outcome. Being asymptotic, it says nothing of few users;
before `min_users` of each arm there is no claim.

Shares of users use the mixture of Lindon and Malek (NeurIPS 2022, arXiv:2011.03567), which is
exact.

Axes: U users in the order in which their outcomes were known, T looks, A arms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from recsys.data.bounds import check_bounds
from recsys.evaluation.intervals import Floats

Integers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class SequentialConfig:
    """How arms are compared."""

    error: float = 0.05
    """Chance that the sequence misses the true difference at any look."""
    narrow_at: int = 5_000
    """Number of users of both arms at which the sequence is to be narrowest."""
    min_users: int = 100
    """Users of each arm below which there is no claim."""

    def __post_init__(self) -> None:
        check_bounds(self, error="(0, 1)", narrow_at=">= 1", min_users=">= 2")

    @property
    def rho_squared(self) -> float:
        """Variance of the mixture, in those of one user."""
        log = -2 * math.log(self.error)
        return (log + math.log(log + 1)) / self.narrow_at


class OutcomeMoments(NamedTuple):
    """One arm at each look; the three have the same shape."""

    num_users: Floats
    mean: Floats
    """NaN before the first user."""
    variance: Floats
    """Variance of one user's outcome, with n - 1; NaN before the second."""


class ArmDifferences(NamedTuple):
    """One arm less another at each look; the three have the same shape."""

    difference: Floats
    low: Floats
    """-inf where there are too few users for a claim, or none of them differ."""
    high: Floats


def moments_at(outcomes: Floats, looks: Integers) -> OutcomeMoments:
    """Summarise the first users at each look.

    Args:
        outcomes: Of users, in the order in which they were known, [..., U].
        looks: How many users were known, ascending, [T].

    Returns:
        Arrays of [..., T].
    """
    # Squares of what lies near 0 keep their digits.
    centre = outcomes.mean(-1, keepdims=True) if outcomes.shape[-1] else 0.0
    zero = np.zeros((*outcomes.shape[:-1], 1))
    centred = np.concatenate([zero, outcomes - centre], axis=-1)
    sums, squares = centred.cumsum(-1)[..., looks], (centred**2).cumsum(-1)[..., looks]
    number = np.broadcast_to(looks.astype(np.float64), sums.shape)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = sums / number
        variance = np.maximum(squares - number * mean**2, 0.0) / (number - 1)
    return OutcomeMoments(number, mean + centre, np.where(number > 1, variance, np.nan))


def differences(
    first: OutcomeMoments,
    second: OutcomeMoments,
    config: SequentialConfig | None = None,
    comparisons: int = 1,
) -> ArmDifferences:
    """Compute the confidence sequence of the second mean less the first."""
    config = config or SequentialConfig()
    error = config.error / comparisons
    found = second.mean - first.mean
    spread = first.variance / np.maximum(first.num_users, 1)
    spread = spread + second.variance / np.maximum(second.num_users, 1)
    scaled = (first.num_users + second.num_users) * config.rho_squared
    enough = np.minimum(first.num_users, second.num_users) >= config.min_users
    with np.errstate(invalid="ignore", divide="ignore"):
        width = 2 * (scaled + 1) / scaled * np.log(np.sqrt(scaled + 1) / error)
        radius = np.where(enough & (spread > 0), np.sqrt(spread * width), np.inf)
        # Where there is no user yet the difference is NaN.
        claimed = np.isfinite(radius)
        low = np.where(claimed, found - radius, -np.inf)
        return ArmDifferences(found, low, np.where(claimed, found + radius, np.inf))


def sample_ratio(
    arms: Integers, shares: Sequence[float], *, strength: float = 100.0
) -> tuple[Floats, Integers]:
    """Test after every user whether arms get their shares.

    The chance of the arms under a Dirichlet mixture around the shares, over their chance under the
    shares, is a martingale while the shares hold, so it reaches 1 / p with probability p at most.

    Args:
        arms: Number of the arm of each user, in the order of their first lists, [U].
        shares: Of each arm, above 0, [A].

    Returns:
        The p-value after each user, which never grows, [U], and how many of each arm there were,
        [U, A].
    """
    expected = np.asarray(shares, np.float64)
    if not (expected > 0).all():
        raise ValueError(f"shares of arms must be above 0, got {list(shares)}")
    expected = expected / expected.sum()
    counts = (arms[:, None] == np.arange(len(expected))).cumsum(0)
    prior = strength * expected
    number = counts.sum(1)
    log = (_log_gamma(prior + counts) - _log_gamma(prior)).sum(1)
    log -= _log_gamma(strength + number) - _log_gamma(np.array(strength))
    log -= counts @ np.log(expected)
    reached = np.maximum.accumulate(log) if len(log) else log
    return np.minimum(1.0, np.exp(-reached)), counts


def _log_gamma(values: Floats) -> Floats:
    found: Floats = torch.lgamma(torch.from_numpy(np.asarray(values, np.float64))).numpy()
    return found
