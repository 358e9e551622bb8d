"""Results of experiments so far, from exported lists and events.

Each user counts once, with what they did in a window of time after their first list of the
experiment, under the arm of that list. A user's outcome is thus settled when the window is over and
never changes, which is what a confidence sequence needs: users come one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import polars as pl

from pipelines.inputs.exported import RECEIVED_TIME, REQUESTS, list_parts, scan_parts
from recsys.evaluation.sequential import (
    OutcomeMoments,
    SequentialConfig,
    differences,
    moments_at,
    sample_ratio,
)

Metric = Literal["per_user", "per_list", "share"]
CONTROL = "control"
DOUBTED = 0.01
"""P-value of the shares of arms below which nothing else is to be trusted."""
Shares = Mapping[str, Mapping[str, float]]
"""Weight of each arm by experiment, in the order of a configuration."""
TEXT, NUMBER = pl.String(), pl.Int64()
LISTS = pl.Schema(
    {"request_id": TEXT, "user_id": TEXT, "experiment": TEXT, "arm": TEXT, "served_ms": NUMBER}
)
EVENTS = pl.Schema({"request_id": TEXT, "received_ms": NUMBER})


class Collected(NamedTuple):
    """Lists of all experiments, and the events of one type that name a list."""

    lists: pl.DataFrame
    """`LISTS`, each list once."""
    events: pl.DataFrame
    """`EVENTS`."""
    as_of_ms: int
    """Until when everything that happened is here."""


def read_export(folder: Path, event_type: str) -> Collected:
    """Read what ``recsys data export`` wrote; a list without items is not there."""
    if not (folder / REQUESTS).is_dir():
        raise ValueError(
            f"{folder} holds no served lists; name a folder that recsys data export wrote"
        )
    in_arms = pl.col("experiment").is_not_null() & pl.col("slot").eq(0)
    named = pl.col("request_id").is_not_null() & pl.col("event_type").eq(event_type)
    lists, served_ms = _read(folder / REQUESTS, "served_ms", in_arms, LISTS)
    events, received_ms = _read(folder, "received_ms", named, EVENTS)
    return Collected(lists, events, max(served_ms, received_ms))


def _read(folder: Path, time: str, kept: pl.Expr, schema: pl.Schema) -> tuple[pl.DataFrame, int]:
    """Read some rows of an export, and the time of its newest row; 0 without any."""
    parts = list_parts(folder)
    if not parts:
        return pl.DataFrame(schema=schema), 0
    rows = scan_parts(parts).with_columns(pl.col(RECEIVED_TIME).dt.epoch("ms").alias(time))
    newest = rows.select(pl.col(time).max()).collect().item()
    return rows.filter(kept).select(list(schema)).collect(), newest or 0


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
    """One arm."""

    name: str
    share: float | None
    """Configured share of the users; None if it is not known."""
    users: int
    """Users who saw a list."""
    settled: int
    """Users whose window is over; only these count."""
    lists: int
    outcome: float | None
    """Mean over settled users, or None."""
    difference: float | None = None
    """From the first arm; None for that itself."""
    low: float | None = None
    """Lower bound of the confidence sequence; None without a claim."""
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class ExperimentResult:
    """One experiment."""

    name: str
    arms: tuple[ArmResult, ...]
    ratio_p_value: float | None
    """P-value of the shares of arms; None if one arm's share is not known."""
    moved_users: int
    """Users who saw lists of several arms; their first one counts."""

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
        (pl.col("served_ms").first() + window_ms).alias("settled_ms"),
        pl.col("arm").n_unique().gt(1).alias("moved"),
        pl.len().alias("lists"),
    )
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
    p_value = None
    if all(arm in weights for arm in arms) and len(arms) > 1:
        places = users["arm"].replace_strict({arm: place for place, arm in enumerate(arms)})
        p_value = float(sample_ratio(places.to_numpy(), [weights[arm] for arm in arms])[0][-1])
    results: list[ArmResult] = []
    first: OutcomeMoments | None = None
    for arm in arms:
        own = users.filter(pl.col("arm") == arm)
        outcomes = own.filter(pl.col("settled_ms") <= as_of_ms)["outcome"].to_numpy()
        moments = moments_at(outcomes, np.array([len(outcomes)]))
        compared: list[float | None] = [None] * 3
        if first is None:
            first = moments
        else:
            sequence = differences(first, moments, config.sequential, len(arms) - 1)
            compared = [_finite(values[-1]) for values in sequence]
        results.append(
            ArmResult(
                name=arm,
                share=weights[arm] / total if arm in weights else None,
                users=own.height,
                settled=len(outcomes),
                lists=int(own["lists"].sum()),
                outcome=_finite(moments.mean[-1]),
                difference=compared[0],
                low=compared[1],
                high=compared[2],
            )
        )
    return ExperimentResult(
        name=name,
        arms=tuple(results),
        ratio_p_value=p_value,
        moved_users=int(users["moved"].sum()),
    )


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
