"""Cut a log's timeline into steps.

Step 0 is the warm-up: models fitted before it choose their settings by it, and the first blend
weights are learned on it. Steps from 1 on are evaluated.

Axes: E events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Policy = Literal["full", "incremental", "never"]
POLICIES: dict[Policy, str] = {
    "full": "all models are retrained from scratch before every step",
    "incremental": "counts are recomputed; trained models continue from earlier weights",
    "never": "models and blend weights of the first step serve all steps",
}
SECONDS_PER_DAY = 86_400
MIN_KNOWN = 2
"""Events before the warm-up below which there is nothing to fit on."""
USE_LEAVE_ONE_OUT = (
    'judge it by leave-one-out instead: splits.kind = "leave_one_out" (the default) with recsys run'
)


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """How the past is replayed."""

    num_steps: int = 15
    """Steps that are judged; without ``step_days`` each has about as many events."""
    step_days: float | None = None
    """Length of a step, such as 1 or 7; the last ``num_steps`` steps with events are judged."""
    first_share: float = 0.5
    """Share of the events that come before the first judged step, without ``step_days``."""
    policies: tuple[Policy, ...] = ("full", "incremental", "never")
    """How models are kept up to date, side by side."""
    models: tuple[str, ...] = ()
    """Models that are replayed; empty takes those of profile ``fast`` that the run trains."""
    max_queries: int = 5_000
    """Queries of a step, drawn by the seed."""
    new_passes: float = 2.0
    """Passes of an incremental training over the windows with new events."""
    replay_share: float = 0.25
    """Of an incremental training's windows beside the new ones: drawn from older events, as a
    share of all older windows."""
    new_rate: float = 0.3
    """Peak learning rate of an incremental training, as a share of the schedule's."""
    continue_from: Literal["last", "full"] = "last"
    """Weights that an incremental training goes on from: ``last``, of the training before it, or
    ``full``, of the last training from scratch, on all events since."""
    full_every: int = 0
    """Steps from one training from scratch to the next in policy ``incremental``, such as 7 where
    a step is a day; 0 trains from scratch before the first step alone."""
    jobs: int = 1
    """Fits at a time, in processes of their own."""

    def __post_init__(self) -> None:
        if self.num_steps < 1:
            raise ValueError(f"backtest.num_steps must be >= 1, got {self.num_steps}")
        if self.step_days is not None and not 0 < self.step_days < float("inf"):
            raise ValueError(f"backtest.step_days must be > 0 or left out, got {self.step_days}")
        if not 0 < self.first_share < 1:
            raise ValueError(f"backtest.first_share must be in (0, 1), got {self.first_share}")
        if not self.policies or set(self.policies) - set(POLICIES):
            raise ValueError(
                f"backtest.policies must be some of {', '.join(POLICIES)}, got "
                f"{list(self.policies)}"
            )
        if self.max_queries < 1 or self.jobs < 1:
            raise ValueError(
                f"backtest.max_queries and jobs must be >= 1, got {self.max_queries} and "
                f"{self.jobs}"
            )
        if not self.new_passes > 0 or not self.new_rate > 0:
            raise ValueError(
                f"backtest.new_passes and new_rate must be > 0, got {self.new_passes} and "
                f"{self.new_rate}"
            )
        if self.full_every < 0 or self.continue_from not in ("last", "full"):
            raise ValueError(
                "backtest.full_every must be >= 0 and continue_from 'last' or 'full', got "
                f"{self.full_every} and {self.continue_from!r}"
            )
        if not 0 <= self.replay_share <= 1:
            raise ValueError(f"backtest.replay_share must be in [0, 1], got {self.replay_share}")

    def continued_step(self, number: int) -> int | None:
        """Name the step whose weights policy ``incremental`` continues before a step, from 1.

        None where it trains from scratch.
        """
        last_full = 1 + (number - 1) // self.full_every * self.full_every if self.full_every else 1
        if number == last_full:
            return None
        return last_full if self.continue_from == "full" else number - 1


@dataclass(frozen=True, kw_only=True)
class Step:
    """A part of the timeline."""

    number: int
    """0 is the warm-up."""
    begin: int
    """Unix seconds; models know what was before."""
    end: int
    """Unix seconds, exclusive."""


def cut_steps(times: NDArray[np.int64] | None, config: ReplayConfig) -> tuple[Step, ...]:
    """Cut the timeline, the warm-up first.

    Args:
        times: Unix seconds of all events, in any order, [E].
        config: How many steps, or how long they are.

    Raises:
        ValueError: There are no times, or too few different ones.
    """
    if times is None:
        raise ValueError(
            "the events have no event_time, so their past cannot be replayed; " + USE_LEAVE_ONE_OUT
        )
    ordered = np.sort(np.asarray(times))
    if len(ordered) == 0 or ordered[0] == ordered[-1]:
        only = f"all {len(ordered)} events are of one time" if len(ordered) else "there is no event"
        raise ValueError(f"{only}, so there is no past to replay; {USE_LEAVE_ONE_OUT}")
    if config.step_days is None:
        bounds = _equal_shares(ordered, config)
    else:
        bounds = _equal_lengths(ordered, round(config.step_days * SECONDS_PER_DAY), config)
    known = np.searchsorted(ordered, bounds[:, 0])
    bounds = bounds[known >= MIN_KNOWN]
    if len(bounds) < 2:
        raise ValueError(
            f"the events span {(ordered[-1] - ordered[0]) / SECONDS_PER_DAY:.2f} days at "
            f"{len(np.unique(ordered))} different times, which leaves no step to judge behind a "
            "warm-up; shorten backtest.step_days, lower backtest.first_share, or "
            + USE_LEAVE_ONE_OUT
        )
    return tuple(
        Step(number=number, begin=int(begin), end=int(end))
        for number, (begin, end) in enumerate(bounds)
    )


def _equal_shares(ordered: NDArray[np.int64], config: ReplayConfig) -> NDArray[np.int64]:
    """Bounds of steps of about as many events, [S, 2]; fewer where many events are of one time."""
    num_events = len(ordered)
    each = (1 - config.first_share) / config.num_steps
    shares = config.first_share + each * np.arange(-1, config.num_steps)
    places = np.round(np.maximum(shares, 0) * num_events).astype(np.int64)
    begins = np.unique(ordered[np.minimum(places, num_events - 1)])
    begins = begins[begins > ordered[0]]
    return np.stack([begins, np.append(begins[1:], ordered[-1] + 1)], axis=1)


def _equal_lengths(
    ordered: NDArray[np.int64], length: int, config: ReplayConfig
) -> NDArray[np.int64]:
    """Bounds of the last steps of so many seconds that have events, [S, 2].

    They lie on multiples of the length since 1970, so days begin at midnight (UTC).
    """
    number = np.unique(ordered // max(1, length))[-(config.num_steps + 1) :]
    return np.stack([number * length, (number + 1) * length], axis=1)
