"""Results of experiments so far.

Each user counts once, with what they did in a window of time after their first list of the
experiment, under the arm of that list. A user's outcome is thus settled when the window is over and
never changes, which is what a confidence sequence needs: users come one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Literal, get_args

import numpy as np
import polars as pl

from pipelines.experiments.collected import Collected
from recsys.evaluation.sequential import (
    ArmDifferences,
    OutcomeMoments,
    SequentialConfig,
    differences,
    moments_at,
    sample_ratio,
)

Metric = Literal["per_user", "per_list", "share"]
METRICS: tuple[Metric, ...] = get_args(Metric)
CONTROL = "control"
DAY_MS = 86_400_000
DOUBTED = 0.01
"""P-value of the shares of arms below which nothing else is to be trusted."""
Shares = Mapping[str, Mapping[str, float]]
"""Weight of each arm by experiment, in the order of a configuration."""


@dataclass(frozen=True, kw_only=True)
class AnalysisConfig:
    """Outcome of an experiment, and its comparison."""

    metric: Metric = "per_user"
    """Events of a user, events for each of their lists, or whether there was any."""
    window: timedelta = timedelta(days=1)
    """Time after a user's first list that counts."""
    sequential: SequentialConfig = field(default_factory=SequentialConfig)


@dataclass(frozen=True, kw_only=True)
class ArmResult:
    """One arm at the last look."""

    name: str
    share: float | None
    """Configured share of the users; None if it is not known."""
    users: int
    """Users who saw a list."""
    settled: int
    """Users whose window is over; only these count."""
    lists: int
    outcome: float | None
    """Mean over settled users; None where there is none."""
    difference: float | None = None
    """From the first arm; None for that itself."""
    low: float | None = None
    """Lower bound of the confidence sequence; None without a claim."""
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class ExperimentResult:
    """One experiment at every look."""

    name: str
    arms: tuple[ArmResult, ...]
    ratio_p_value: float | None
    """P-value of the shares of arms; None if one arm's share is not known."""
    moved_users: int
    """Users who saw lists of several arms; their first one counts."""
    days: tuple[date, ...]
    """Looks: the ends of days, in UTC."""
    sequences: Mapping[str, ArmDifferences]
    """By arm other than the first, [T]."""

    @property
    def doubted(self) -> bool:
        """True if the arms do not have their shares."""
        return self.ratio_p_value is not None and self.ratio_p_value < DOUBTED


def analyse(
    collected: Collected, config: AnalysisConfig, shares: Shares | None = None
) -> list[ExperimentResult]:
    """Analyse every experiment of which lists were served, by name.

    Args:
        shares: Of a serving configuration; without them arms are taken to have equal shares.
    """
    users = _users(collected, config)
    found = []
    for (name,), own in users.partition_by("experiment", as_dict=True, maintain_order=True).items():
        weights = None if shares is None else shares.get(str(name), {})
        found.append(_experiment(str(name), own, collected.as_of_ms, weights, config))
    return sorted(found, key=lambda one: one.name)


def _users(collected: Collected, config: AnalysisConfig) -> pl.DataFrame:
    """One row a user and experiment, in the order of their first lists."""
    window_ms = int(config.window / timedelta(milliseconds=1))
    key = ["experiment", "user_id"]
    lists = collected.lists.filter(pl.col("user_id").is_not_null()).sort("served_ms", "request_id")
    first = lists.group_by(key, maintain_order=True).agg(
        pl.col("arm").first(),
        pl.col("served_ms").first().alias("first_ms"),
        pl.col("arm").n_unique().gt(1).alias("moved"),
        pl.len().alias("lists"),
    )
    first = first.with_columns((pl.col("first_ms") + window_ms).alias("settled_ms"))
    inside = lists.join(first.select(*key, "settled_ms"), on=key).filter(
        pl.col("served_ms") < pl.col("settled_ms")
    )
    events = inside.join(collected.events, on="request_id").filter(
        pl.col("received_ms") < pl.col("settled_ms")
    )
    shown = inside.group_by(key).agg(pl.len().alias("shown"))
    happened = events.group_by(key).agg(pl.len().alias("events"))
    joined = first.join(shown, on=key, how="left", maintain_order="left")
    joined = joined.join(happened, on=key, how="left", maintain_order="left")
    count = pl.col("events").fill_null(0).cast(pl.Float64)
    outcome = {
        "per_user": count,
        "per_list": count / pl.col("shown"),
        "share": count.gt(0).cast(pl.Float64),
    }[config.metric]
    return joined.with_columns(outcome.alias("outcome"))


def _experiment(
    name: str,
    users: pl.DataFrame,
    as_of_ms: int,
    weights: Mapping[str, float] | None,
    config: AnalysisConfig,
) -> ExperimentResult:
    seen = sorted(users["arm"].unique(), key=lambda arm: (arm != CONTROL, arm))
    arms = list(dict.fromkeys([*(weights or {}), *seen]))
    weights = dict.fromkeys(arms, 1.0) if weights is None else weights
    total = sum(weights.values())
    settled = users.filter(pl.col("settled_ms") <= as_of_ms)
    days = _days(settled["settled_ms"])
    # The last look is at all that is settled.
    ends = np.array([(day - date(1970, 1, 1)).days + 1 for day in days], np.int64) * DAY_MS
    moments = {arm: _moments(settled.filter(pl.col("arm") == arm), ends) for arm in arms}
    sequences = {
        arm: differences(moments[arms[0]], moments[arm], config.sequential, len(arms) - 1)
        for arm in arms[1:]
    }
    p_value = None
    if all(arm in weights for arm in arms) and len(arms) > 1:
        places = users["arm"].replace_strict({arm: place for place, arm in enumerate(arms)})
        p_value = float(sample_ratio(places.to_numpy(), [weights[arm] for arm in arms])[0][-1])
    results = [
        _arm(
            arm,
            users.filter(pl.col("arm") == arm),
            moments[arm],
            sequences.get(arm),
            weights[arm] / total if arm in weights else None,
        )
        for arm in arms
    ]
    return ExperimentResult(
        name=name,
        arms=tuple(results),
        ratio_p_value=p_value,
        moved_users=int(users["moved"].sum()),
        days=tuple(days),
        sequences=sequences,
    )


def _days(settled_ms: pl.Series) -> Sequence[date]:
    """List days from the first to the last of ascending moments."""
    if not len(settled_ms):
        return []
    first, last = (
        datetime.fromtimestamp(settled_ms[place] / 1_000, UTC).date() for place in (0, -1)
    )
    return [first + timedelta(days=number) for number in range((last - first).days + 1)]


def _moments(
    users: pl.DataFrame, ends: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> OutcomeMoments:
    looks = np.searchsorted(users["settled_ms"].to_numpy(), ends, side="left").astype(np.int64)
    return moments_at(users["outcome"].to_numpy(), looks)


def _arm(
    name: str,
    users: pl.DataFrame,
    moments: OutcomeMoments,
    sequence: ArmDifferences | None,
    share: float | None,
) -> ArmResult:
    # Before any window is over there are no looks.
    looks = len(moments.num_users)
    last = [float(values[-1]) if looks else math.nan for values in sequence or ()]
    difference, low, high = (
        [value if math.isfinite(value) else None for value in last] if last else [None] * 3
    )
    mean = float(moments.mean[-1]) if looks else math.nan
    return ArmResult(
        name=name,
        share=share,
        users=users.height,
        settled=int(moments.num_users[-1]) if looks else 0,
        lists=int(users["lists"].sum()),
        outcome=mean if math.isfinite(mean) else None,
        difference=difference,
        low=low,
        high=high,
    )
