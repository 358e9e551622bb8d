"""Cut a log's timeline into steps.

Step 0 is the warm-up: settings and the first blend weights are learned on it. Steps from 1 on are
evaluated.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from recsys.data.batch import Jagged
from recsys.data.dataset import HeldOut, Rows, Sequences, concatenated_ranges, ragged
from recsys.evaluation.config import ReplayConfig

SECONDS_PER_DAY = 86_400
MIN_KNOWN = 2
"""Events before the warm-up below which there is nothing to fit on."""
USE_LEAVE_ONE_OUT = (
    'judge it by leave-one-out instead: splits.kind = "leave_one_out" (the default) with recsys run'
)


@dataclass(frozen=True, kw_only=True)
class Step:
    """A part of the timeline."""

    number: int
    """0 is the warm-up."""
    begin: int
    """Unix seconds; models know the events before it."""
    end: int
    """Unix seconds, exclusive."""


def cut_steps(times: NDArray[np.int64] | None, config: ReplayConfig) -> tuple[Step, ...]:
    """Cut the timeline by the times of all events, Unix seconds, [E]; the warm-up first."""
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
    """Bounds of the last steps of ``length`` seconds with events, [S, 2], since 1970."""
    number = np.unique(ordered // max(1, length))[-(config.num_steps + 1) :]
    return np.stack([number * length, (number + 1) * length], axis=1)


Flags = NDArray[np.bool_]


class Timeline:
    """Every user's events in order of time, shared by all steps."""

    def __init__(self, events: Sequences, num_item_rows: int) -> None:
        assert events.times is not None, "cut_steps refuses events without times"
        self.events, self.num_item_rows = events, num_item_rows
        self.times = np.asarray(events.times)
        self.item_rows = np.asarray(events.item_rows)
        self.users = np.repeat(np.arange(events.num_user_rows), np.diff(events.offsets))  # [E]
        late = (np.diff(self.times) < 0) & (np.diff(self.users) == 0)
        if late.any():
            raise ValueError(
                f"user row {int(self.users[np.flatnonzero(late)[0]])} has events that are not in "
                "order of time; a replay needs event_time to be the order of a user's events "
                "(leave sequence_index out)"
            )
        self.first_times = np.full(num_item_rows, np.iinfo(np.int64).max)  # [N]
        np.minimum.at(self.first_times, self.item_rows, self.times)

    def before(self, moment: int) -> Rows:
        """Return the end of each user's events before a moment, [U]."""
        counts = np.bincount(self.users[self.times < moment], minlength=self.events.num_user_rows)
        ends: Rows = np.asarray(self.events.offsets[:-1]) + counts
        return ends

    def known_items(self, moment: int) -> Flags:
        """Mark the items that had an event before a moment, [N]."""
        known: Flags = self.first_times < moment
        known[0] = False
        return known

    @cached_property
    def first_places(self) -> Rows:
        """Position of the user's first event of the same item, [E]."""
        pairs = self.users * self.num_item_rows + self.item_rows
        _, first, inverse = np.unique(pairs, return_index=True, return_inverse=True)
        return np.asarray(first[inverse])


@dataclass(frozen=True, kw_only=True)
class StepQueries:
    """Queries of a step with their targets."""

    step: Step
    user_rows: Rows
    """[Q]"""
    history_ends: Rows
    """Position of the first event of the moment; the user's events before it are known, [Q]."""
    moments: Rows
    """Unix seconds, [Q]."""
    targets: Jagged
    """Items of the moment that lists are for, each once, Q queries."""
    candidates: Flags
    """Items that lists may hold: those with an event before the step, [N]."""

    def __len__(self) -> int:
        return len(self.user_rows)

    @classmethod
    def of(
        cls, timeline: Timeline, step: Step, *, exclude_history: bool, max_queries: int, seed: int
    ) -> StepQueries:
        """Collect at most ``max_queries`` queries of a step, without targets that lists exclude."""
        times, users = timeline.times, timeline.users
        inside = (times >= step.begin) & (times < step.end)
        # A user's events of one time follow each other, so the first of them begins a query.
        starts = np.ones(len(times), bool)
        starts[1:] = (np.diff(times) != 0) | (np.diff(users) != 0)
        query_of = np.cumsum(starts) - 1  # [E]
        wanted = timeline.events.of_targets(np.flatnonzero(inside))
        if exclude_history:
            wanted = wanted[query_of[timeline.first_places[wanted]] == query_of[wanted]]
        pairs = query_of[wanted] * timeline.num_item_rows + timeline.item_rows[wanted]
        wanted = wanted[np.sort(np.unique(pairs, return_index=True)[1])]
        numbers, counts = np.unique(query_of[wanted], return_counts=True)
        history_ends = np.flatnonzero(starts)[numbers]
        found = cls(
            step=step,
            user_rows=users[history_ends],
            history_ends=history_ends,
            moments=times[history_ends],
            targets=ragged(timeline.item_rows[wanted], counts),
            candidates=timeline.known_items(step.begin),
        )
        if len(found) <= max_queries:
            return found
        rng = np.random.default_rng([seed, step.number])
        return found.take(np.sort(rng.choice(len(found), max_queries, replace=False)))

    def take(self, rows: Rows) -> StepQueries:
        return StepQueries(
            step=self.step,
            user_rows=self.user_rows[rows],
            history_ends=self.history_ends[rows],
            moments=self.moments[rows],
            targets=self.targets.take(torch.from_numpy(rows)),
            candidates=self.candidates,
        )

    def held_out(self, events: Sequences) -> HeldOut:
        starts = np.asarray(events.offsets)[self.user_rows]
        before = concatenated_ranges(starts, self.history_ends)
        return HeldOut(
            positions=self.history_ends,
            targets=self.targets,
            seen=ragged(np.asarray(events.item_rows[before]), self.history_ends - starts),
        )
