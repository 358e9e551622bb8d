"""Measure drift of a day against the days before it, and learn when a signal's value is an alarm.

Distance: the square root of the Jensen-Shannon divergence between mixes of counts.

Bands: a signal is expected at its recent level plus the usual deviation of the weekday. What past
days deviated from their own expectation is the null: its tail beyond the 90% quantile is taken as
exponential (peaks over threshold, Siffer et al., KDD 2017), which gives the bound that is passed
with a chosen small chance.

Axes: T past days, oldest first, K categories.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]
Rows = NDArray[np.int64]
Tail = Literal["both", "high"]

LEVEL_DAYS = 14
SEASON_DAYS = 63
ACCEPTED_DAYS = 7
"""After this number of days of alarm in a row, all weekdays, the new level is the expected one."""
TAIL_SHARE = 0.1
NORMAL_EXCESS = 0.42
"""Mean of what a normal deviation exceeds its 90% quantile by, in standard deviations."""
PRIOR_EXCESSES = 5.0
"""Past excesses that the normal one counts as."""
MAX_WIDENED = 2.0
"""How far beyond the usual the standard error of a day's score counts."""
SHRUNK_WEEKDAYS = 2.0
"""Zeros that a weekday's mean deviation is averaged with."""


def mix_distance(counts: Numbers, reference: Numbers) -> float:
    """Square root of the Jensen-Shannon divergence (base 2) of two mixes, in [0, 1].

    Args:
        counts: Of each category on the day, [K]; none at all gives NaN.
        reference: The same in the reference window, [K].
    """
    if counts.sum() <= 0 or reference.sum() <= 0:
        return float("nan")
    p, q = counts / counts.sum(), reference / reference.sum()
    middle = (p + q) / 2

    def divergence(part: Numbers) -> float:
        held = part > 0
        return float((part[held] * np.log2(part[held] / middle[held])).sum())

    return float(np.sqrt(max(0.0, (divergence(p) + divergence(q)) / 2)))


@dataclass(frozen=True, kw_only=True)
class Past:
    """History of a signal before a day, all [T], one entry a calendar day."""

    scores: Numbers
    """Values on the scale where deviations add; NaN where there was none."""
    residuals: Numbers
    """Deviation of each from its expectation; NaN without one."""
    noise: Numbers
    """Standard error of each score by the day's counts."""
    streaks: Rows
    """Days of alarm in a row up to each day; 0 without."""
    weekdays: Rows
    """0 is Monday."""


class AlarmBand(NamedTuple):
    """Expected range of a signal, on its scale of scores."""

    expected: float
    """The middle of the band."""
    low: float
    high: float
    base: float
    """Result of `expected_score`, from which a day's residual is counted."""
    num_past: int
    """Past deviations that the bounds were learned from."""


def expected_score(past: Past, weekday: int) -> float:
    """Expect the recent level plus the weekday's usual deviation; NaN with under a week of past.

    Days of alarm count only once they are accepted as the level.
    """
    scores = np.where(past.streaks > 0, np.nan, past.scores)
    accepted = np.flatnonzero(past.streaks >= ACCEPTED_DAYS)
    if len(accepted) and len(past.scores) - accepted[-1] <= 2 * LEVEL_DAYS:
        begin = accepted[-1] - ACCEPTED_DAYS + 1
        scores = np.where(np.arange(len(scores)) >= begin, past.scores, np.nan)
    effects = weekday_effects(past)
    level = (scores - effects[past.weekdays])[-2 * LEVEL_DAYS :]
    level = np.sort(level[~np.isnan(level)][-LEVEL_DAYS:])
    if len(level) < 7:
        return float("nan")
    cut = len(level) // 5
    return float(level[cut : len(level) - cut].mean() + effects[weekday])


def weekday_effects(past: Past) -> Numbers:
    """Return each weekday's usual deviation from the week around it, [7], shrunk to 0."""
    scores = np.where(past.streaks > 0, np.nan, past.scores)[-SEASON_DAYS:]
    weekdays = past.weekdays[-SEASON_DAYS:]
    effects = np.zeros(7)
    if len(scores) < 21:
        return effects
    known = ~np.isnan(scores)
    filled = np.where(known, scores, 0.0)
    week = np.ones(7)
    number = np.convolve(known, week, mode="same")
    total = np.convolve(filled, week, mode="same")
    whole = known & (number >= 6)
    whole[:3] = whole[-3:] = False
    deviations = scores - np.divide(total, number, out=np.zeros_like(total), where=number > 0)
    for weekday in range(7):
        own = deviations[whole & (weekdays == weekday)]
        if len(own) >= 2:
            effects[weekday] = np.median(own) * len(own) / (len(own) + SHRUNK_WEEKDAYS)
    return effects


def usual_band(past: Past, weekday: int, noise: float, tail: Tail, chance: float) -> AlarmBand:
    """Bound a day's score so that a usual day passes the bounds with a chance.

    Args:
        noise: Standard error of the day's score by its own counts: a day of few events has a
            wider band.
        tail: Whether low scores are alarms too.
    """
    expected = expected_score(past, weekday)
    known = ~np.isnan(past.residuals) & ((past.streaks == 0) | (past.streaks > ACCEPTED_DAYS))
    residuals, errors = past.residuals[known], past.noise[known]
    num = len(residuals)
    if num < 2 or np.isnan(expected):
        return AlarmBand(expected, -np.inf, np.inf, expected, num)
    center = float(np.median(residuals))
    deviations = residuals - center
    sided = np.abs(deviations) if tail == "both" else deviations[deviations > 0]
    usual = float(np.median(errors))
    scale = max(1.4826 * float(np.median(sided)) if len(sided) else 0.0, usual, 1e-9)
    z = np.abs(deviations) / scale if tail == "both" else deviations / scale
    bound = tail_bound(z, chance, tail) * (1 + 4 / num)
    # A share that falls to 0 must not widen its own band without end.
    noise = min(noise, MAX_WIDENED * usual)
    spread = bound * float(np.sqrt(scale**2 + max(0.0, noise**2 - usual**2)))
    middle = expected + center
    low = -np.inf if tail == "high" else middle - spread
    return AlarmBand(middle, low, middle + spread, expected, num)


def tail_bound(z: Numbers, chance: float, tail: Tail) -> float:
    """Extrapolate the bound that standardised deviations pass with a chance, from [T] past ones."""
    begin = float(np.quantile(z, 1 - TAIL_SHARE))
    excesses = z[z > begin] - begin
    mean = (excesses.sum() + PRIOR_EXCESSES * NORMAL_EXCESS) / (len(excesses) + PRIOR_EXCESSES)
    share = max(len(excesses), 1) / len(z)
    sides = 2 if tail == "both" else 1
    normal = NormalDist().inv_cdf(1 - chance / sides)
    return max(begin + float(mean) * log(share / chance), normal)
