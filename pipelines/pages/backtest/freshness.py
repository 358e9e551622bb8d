"""What stale models cost: quality against the age of models, relative to fresh ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipelines.pages.backtest.replayed import ALL, SERVED, Backtest

STALE = "never"
FRESH = ("full", "incremental")
"""Policies that models are fresh by, the better first."""
SPANS = {1.0: "a day", 7.0: "a week", 30.0: "a month", 91.0: "a quarter", 365.0: "a year"}
"""Days by their name."""
LOST = 0.1
"""Share of fresh models' quality whose loss is dated."""


class Aged(NamedTuple):
    """What models of an age keep of fresh models' quality, on one step."""

    step: int
    age: float
    """Days."""
    share: float
    error: float | None
    """Standard error of the share; both lists' errors as if they were independent, so that it is
    too large rather than too small."""
    num_queries: int


class Ageing(NamedTuple):
    """How quality falls with age."""

    measured: tuple[Aged, ...]
    """By age; the first has the age 0 and all of the quality."""
    fitted: NDArray[np.float64]
    """The shares that never rise with age and are nearest to those measured, by measured age."""
    fresh: str
    """Policy of the fresh models."""

    @property
    def oldest(self) -> float:
        return self.measured[-1].age

    def kept(self, days: float) -> float:
        """Share that models of an age keep, interpolated between measured ages."""
        ages = [one.age for one in self.measured]
        return float(np.interp(days, ages, self.fitted))

    def days_to_lose(self, share: float) -> float | None:
        """Age at which a share is lost; None where it is not within what was measured."""
        for place in range(1, len(self.measured)):
            before, after = self.fitted[place - 1], self.fitted[place]
            if 1 - after >= share:
                young, old = self.measured[place - 1].age, self.measured[place].age
                part = (before - (1 - share)) / (before - after) if before > after else 0.0
                return young + float(part) * (old - young)
        return None


def falling(values: Sequence[float], weights: Sequence[float]) -> NDArray[np.float64]:
    """Fit what never rises to values, by least squares (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        mean, total, number = value, weight, 1
        while pools and pools[-1][0] < mean:
            other, other_total, other_number = pools.pop()
            mean = (mean * total + other * other_total) / (total + other_total)
            total, number = total + other_total, number + other_number
        pools.append((mean, total, number))
    return np.repeat([mean for mean, _, _ in pools], [number for _, _, number in pools])


def ageing_of(
    backtest: Backtest, metric: str, row: str = SERVED, slice_: str = ALL
) -> Ageing | None:
    """Compare models that were never retrained with fresh ones; None where either is missing."""
    fresh = next((name for name in FRESH if name in backtest.policies), None)
    if fresh is None or STALE not in backtest.policies:
        return None
    other = {at.step: at for at in backtest.line(fresh, row, metric, slice_)}
    measured = []
    for at in backtest.line(STALE, row, metric, slice_):
        new = other.get(at.step)
        if new is None or new.value <= 0 or at.age <= 0:
            continue
        error = None
        if at.error is not None and new.error is not None:
            share = at.value / new.value
            error = float(np.hypot(at.error, share * new.error) / new.value)
        measured.append(Aged(at.step, at.age, at.value / new.value, error, at.num_queries))
    if not measured:
        return None
    measured.sort(key=lambda one: one.age)
    # Models of no age are the fresh ones themselves.
    weights = [1e9, *(float(max(1, one.num_queries)) for one in measured)]
    fitted = falling([1.0, *(one.share for one in measured)], weights)
    return Ageing((Aged(1, 0.0, 1.0, 0.0, 0), *measured), fitted, fresh)


def losses(ageing: Ageing) -> list[tuple[str, float, float]]:
    """List what stale models lose: the span's name, its days, the share of quality lost."""
    return [
        (name, days, 1 - ageing.kept(days)) for days, name in SPANS.items() if days <= ageing.oldest
    ]


def words_of(ageing: Ageing) -> list[str]:
    """Say what staleness costs."""
    found = losses(ageing)
    youngest = ageing.measured[1].age
    lines = []
    if found:
        parts = ", ".join(f"{name} {share:.1%}" for name, _, share in found)
        lines.append(f"Loss in quality by age, against models {_made(ageing.fresh)}: {parts}.")
    if found and youngest > found[0][1]:
        lines.append(
            f"The lowest age measured is {youngest:,.1f} days; below it the loss is interpolated "
            "linearly. Use shorter steps (backtest.step_days) to measure it."
        )
    days = ageing.days_to_lose(LOST)
    when = "the loss reaches 10% at no measured age"
    if days is not None:
        when = f"the loss reaches 10% after {days:,.0f} days"
    lost = 1 - ageing.kept(ageing.oldest)
    lines.append(f"Models {ageing.oldest:,.0f} days old have lost {lost:.1%}; {when}.")
    return lines


def _made(policy: str) -> str:
    return "retrained before every step" if policy == "full" else "updated before every step"
