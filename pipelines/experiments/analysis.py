"""Results of experiments so far, from exported lists and events.

Each user counts once, with the events of a window of time after their first list of the experiment,
under the arm of that list. A user's outcome is thus settled when the window is over and never
changes, which is what a confidence sequence needs: users come one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from pipelines.inputs.exported import RECEIVED_TIME, REQUESTS, list_parts, scan_parts
from pipelines.pages.charts import counts, numbers, shares, texts
from pipelines.pages.document import Table
from recsys.evaluation.sequential import (
    OutcomeMoments,
    SequentialConfig,
    differences,
    moments_at,
    sample_ratio,
)

CONTROL = "control"
DOUBTED = 0.01
"""P-value of the shares of arms below which nothing else is to be trusted."""
DAY = timedelta(days=1)
TEST = SequentialConfig()
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
class ArmResult:
    """One arm."""

    name: str
    share: float | None
    """Configured share of the users; None if it is not known."""
    users: int
    """Users who saw a list."""
    settled: int
    """Users whose window is over; only these count."""
    outcome: float | None
    """Mean number of events over settled users, or None."""
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

    @property
    def doubted(self) -> bool:
        """True if the arms do not have their shares."""
        return self.ratio_p_value is not None and self.ratio_p_value < DOUBTED

    def table(self) -> Table:
        """Tabulate the arms."""
        return Table(
            key=f"arms-{self.name}",
            title=self.name,
            note="Differences are from the first arm; no interval means no claim yet.",
            columns=[
                *texts("arm"),
                *counts("users", "that count"),
                *numbers("events per user", format="metric"),
                *numbers("difference", "from", "to", format="signed"),
                *shares("share", note="Of the users, by the configuration."),
            ],
            rows=[
                (
                    *(arm.name, arm.users, arm.settled, arm.outcome),
                    *(arm.difference, arm.low, arm.high, arm.share),
                )
                for arm in self.arms
            ],
        )

    def sentences(self, outcome: str) -> Iterator[str]:
        """Describe the result, reasons against trusting it first."""
        first, *others = self.arms
        if self.doubted:
            users = ", ".join(f"{arm.users:,}" for arm in self.arms)
            yield (
                f"Do not trust the comparison: arms have {users} users, which their shares make "
                f"unlikely (p = {self.ratio_p_value:.2g}). Find out which lists are lost, or "
                "whether weights were changed; then start again under another name."
            )
        elif self.ratio_p_value is None and others:
            yield "The configuration lacks some of these arms, so their shares are not checked."
        if not others:
            yield f"Only the arm {first.name} has been shown."
        for arm in others:
            yield _claim(first, arm, outcome)


def _claim(first: ArmResult, arm: ArmResult, outcome: str) -> str:
    if min(first.settled, arm.settled) < TEST.min_users:
        return (
            f"Too few users for a claim on {arm.name}: it needs {TEST.min_users:,} whose window is "
            f"over in each arm, there are {first.settled:,} in {first.name} and {arm.settled:,} in "
            f"{arm.name}."
        )
    if arm.low is None or arm.high is None:
        return f"No user of {first.name} differs from one of {arm.name} in {outcome} yet."
    bounds = f"between {arm.low:+.4f} and {arm.high:+.4f}"
    if arm.low <= 0 <= arm.high:
        return f"No difference between {arm.name} and {first.name} is shown yet; it is {bounds}."
    way = "ahead of" if arm.low > 0 else "behind"
    return f"{arm.name} is {way} {first.name} in {outcome}: the difference is {bounds}."


def analyse(
    collected: Collected, window: timedelta = DAY, weights: Shares | None = None
) -> list[ExperimentResult]:
    """Analyse every experiment of which lists were served, by name.

    Args:
        window: Time after a user's first list that counts.
        weights: Of a serving configuration; without them arms are taken to have equal shares.
    """
    users = _users(collected, int(window / timedelta(milliseconds=1)))
    return [
        _experiment(
            str(name),
            users.filter(pl.col("experiment") == name),
            collected.as_of_ms,
            None if weights is None else weights.get(str(name), {}),
        )
        for name in sorted(users["experiment"].unique())
    ]


def _users(collected: Collected, window_ms: int) -> pl.DataFrame:
    """One row a user and experiment, in the order of their first lists."""
    key = ["experiment", "user_id"]
    lists = collected.lists.filter(pl.col("user_id").is_not_null()).sort("served_ms", "request_id")
    first = lists.group_by(key, maintain_order=True).agg(
        pl.col("arm").first(), (pl.col("served_ms").first() + window_ms).alias("settled_ms")
    )
    end = pl.col("settled_ms")
    inside = lists.join(first.select(*key, "settled_ms"), on=key).filter(pl.col("served_ms") < end)
    events = inside.join(collected.events, on="request_id").filter(pl.col("received_ms") < end)
    happened = events.group_by(key).agg(pl.len().cast(pl.Float64).alias("outcome"))
    joined = first.join(happened, on=key, how="left", maintain_order="left")
    return joined.with_columns(pl.col("outcome").fill_null(0.0))


def _experiment(
    name: str, users: pl.DataFrame, as_of_ms: int, weights: Mapping[str, float] | None
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
            sequence = differences(first, moments, TEST, len(arms) - 1)
            compared = [_finite(values[-1]) for values in sequence]
        results.append(
            ArmResult(
                name=arm,
                share=weights[arm] / total if arm in weights else None,
                users=own.height,
                settled=len(outcomes),
                outcome=_finite(moments.mean[-1]),
                difference=compared[0],
                low=compared[1],
                high=compared[2],
            )
        )
    return ExperimentResult(name=name, arms=tuple(results), ratio_p_value=p_value)


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
