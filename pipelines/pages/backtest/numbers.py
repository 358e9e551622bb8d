"""Quality and training time of policies, the lead over peers and over the best source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pipelines.pages.backtest.freshness import STALE
from pipelines.pages.backtest.replayed import (
    PEER,
    SERVED,
    At,
    Backtest,
    Choice,
    fit_seconds,
    mean_of,
)
from recsys.evaluation.bootstrap import BootstrapConfig, Interval, bootstrap_intervals

NUM_RESAMPLES = 1_000
HOUR = 3_600.0


class Earned(NamedTuple):
    """Quality and training time of a policy."""

    name: str
    policy: str
    value: float
    low: float
    high: float
    seconds: float
    """Of training behind the first step, which all policies share."""
    relative: float | None
    """Of the most expensive policy's quality."""
    cost: float | None
    """Of its cost."""
    per_hour: float | None
    """Quality gained over models that are never retrained, by hour of training."""


class PeerGap(NamedTuple):
    """How far the served list is ahead of a peer."""

    peer: str
    value: float
    difference: float
    low: float
    high: float
    num_steps: int


class LeadAt(NamedTuple):
    """How far the served list is ahead of the best source of a step."""

    step: int
    begin: str
    member: str
    difference: float
    error: float


class Lead(NamedTuple):
    """How far the served list is ahead of the source that is best over all steps."""

    member: str
    difference: float
    error: float
    steps: tuple[LeadAt, ...]


def over_steps(values: Mapping[str, Mapping[int, float]]) -> dict[str, Interval]:
    """Average values by step, with the intervals that other steps would give.

    Args:
        values: By name and step; a name may lack steps, but not all.
    """
    steps = sorted({step for line in values.values() for step in line})
    table = {
        name: np.array([line.get(step, np.nan) for step in steps]) for name, line in values.items()
    }
    return bootstrap_intervals(table, BootstrapConfig(num_resamples=NUM_RESAMPLES))


def earned(choice: Choice) -> list[Earned]:
    """List policies by their cost, those of every backtest."""
    found = []
    for backtest in choice.shown:
        lines = {
            policy: backtest.line(policy, choice.row, choice.metric, choice.slice)
            for policy in backtest.policies
        }
        lines = {policy: line for policy, line in lines.items() if line}
        means = {name: mean_of(line, by_queries=choice.is_sliced) for name, line in lines.items()}
        seconds = {policy: fit_seconds(backtest.document, policy) for policy in lines}
        if not lines:
            continue
        spreads = over_steps({name: _values(line) for name, line in lines.items()})
        most = max(seconds, key=lambda policy: seconds[policy])
        for policy in lines:
            value, never = means[policy] or 0.0, means.get(STALE)
            spread = spreads[policy]
            gain = None if never is None or policy == STALE else value - never
            whole = means[most]
            found.append(
                Earned(
                    name=choice.name(backtest, policy),
                    policy=policy,
                    value=value,
                    low=value + spread.low - spread.mean,
                    high=value + spread.high - spread.mean,
                    seconds=seconds[policy],
                    relative=value / whole if whole else None,
                    cost=seconds[policy] / seconds[most] if seconds[most] else None,
                    per_hour=gain / (seconds[policy] / HOUR)
                    if gain is not None and seconds[policy]
                    else None,
                )
            )
    return sorted(found, key=lambda one: -one.seconds)


def peer_gaps(choice: Choice) -> list[PeerGap]:
    """Compare the served list of the chosen policy with peers on the same queries, best first."""
    first = choice.first
    served = _values(first.line(choice.policy, SERVED, choice.metric, choice.slice))
    lines = {
        peer: _values(first.line(PEER, peer, choice.metric, choice.slice))
        for peer in first.rows(PEER)
    }
    gaps = {
        peer: {step: served[step] - value for step, value in line.items() if step in served}
        for peer, line in lines.items()
    }
    gaps = {peer: line for peer, line in gaps.items() if line}
    found = []
    for peer, gap in over_steps(gaps).items() if gaps else ():
        value = float(np.mean([lines[peer][step] for step in gaps[peer]]))
        found.append(PeerGap(peer, value, gap.mean, gap.low, gap.high, len(gaps[peer])))
    return sorted(found, key=lambda one: -one.value)


def _values(line: Sequence[At]) -> dict[int, float]:
    return {at.step: at.value for at in line}


def lead_of(choice: Choice) -> Lead | None:
    """Read how far the served list of the chosen policy is ahead of its best source."""
    begins = {one["number"]: one["begin"] for one in choice.first.document["steps"]}
    for one in choice.first.document["leads"]:
        if one["policy"] != choice.policy:
            continue
        steps = tuple(
            LeadAt(
                step=at["step"],
                begin=begins[at["step"]],
                member=at["member"],
                difference=at["difference"],
                error=at["standard_error"],
            )
            for at in one["steps"]
            if at["step"] in begins
        )
        return Lead(one["member"], one["difference"], one["standard_error"], steps)
    return None


def by_slice(backtest: Backtest, row: str, metric: str) -> dict[str, dict[str, float]]:
    """Average a list over the queries of each slice, by slice and policy."""
    found: dict[str, dict[str, float]] = {}
    for slice_ in backtest.slices:
        for policy in backtest.policies:
            mean = mean_of(backtest.line(policy, row, metric, slice_), by_queries=True)
            if mean is not None:
                found.setdefault(slice_, {})[policy] = mean
    return found


def failures(backtest: Backtest) -> list[tuple[str, list[int], str]]:
    """Collect why peers have no lists: peer, steps, last line of the reason."""
    steps: dict[tuple[str, str], list[int]] = {}
    for one in backtest.document["rows"]:
        if "error" in one:
            lines: list[Any] = str(one["error"]).strip().splitlines() or [""]
            pair = (str(one["row"]), str(lines[-1])[:200])
            steps.setdefault(pair, []).append(int(one["step"]))
    return [(row, numbers, text) for (row, text), numbers in steps.items()]
