"""The queries of a step: one for each user and moment at which the user had events in the step.

A query's history is what the user had strictly before the moment, its targets are the items of the
moment. So events of one day in a log of days never know of each other.

Axes: E events, U users, Q queries, M targets, N item rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from recsys.data.batch import Jagged
from recsys.data.dataset import Rows, Sequences, concatenated_ranges
from recsys.data.held_out import HeldOut, ragged
from recsys.replay.steps import Step

Flags = NDArray[np.bool_]


class Timeline:
    """Every user's events in order of time, with what is the same for all steps."""

    def __init__(self, events: Sequences, num_item_rows: int) -> None:
        """Take the events.

        Raises:
            ValueError: A user's events are not in order of time.
        """
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
        """Where each user's events before a moment end, [U]."""
        counts = np.bincount(self.users[self.times < moment], minlength=self.events.num_user_rows)
        ends: Rows = np.asarray(self.events.offsets[:-1]) + counts
        return ends

    def known_items(self, moment: int) -> Flags:
        """Say which items had an event before a moment, [N]."""
        known: Flags = self.first_times < moment
        known[0] = False
        return known

    def repeats(self) -> Flags:
        """Say which events are of an item that the user had before, [E]."""
        pairs = self.users * self.num_item_rows + self.item_rows
        _, first = np.unique(pairs, return_index=True)
        repeated = np.ones(len(pairs), bool)
        repeated[first] = False
        return repeated


@dataclass(frozen=True, kw_only=True)
class StepQueries:
    """What is requested in a step, and what users chose."""

    step: Step
    user_rows: Rows
    """[Q]"""
    history_ends: Rows
    """Position of the first event of the moment; the user's events before it are known, [Q]."""
    moments: Rows
    """Unix seconds, [Q]."""
    targets: Jagged
    """Items of the moment, each once, Q queries."""
    candidates: Flags
    """Items that lists may hold: those with an event before the step, [N]."""

    def __len__(self) -> int:
        return len(self.user_rows)

    @classmethod
    def of(
        cls, timeline: Timeline, step: Step, *, exclude_history: bool, max_queries: int, seed: int
    ) -> StepQueries:
        """Collect the queries of a step, at most so many, drawn by the seed.

        Where lists leave the history out, items that the user had before are no targets.
        """
        times, users = timeline.times, timeline.users
        inside = (times >= step.begin) & (times < step.end)
        # A user's events of one time follow each other, so the first of them begins a query.
        starts = np.ones(len(times), bool)
        starts[1:] = (np.diff(times) != 0) | (np.diff(users) != 0)
        if exclude_history:
            wanted = inside & ~timeline.repeats()
        else:
            wanted = inside & ~_twice_at_once(timeline, starts)
        query_of = np.cumsum(starts) - 1  # [E]
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
        """Pick queries by their place."""
        return StepQueries(
            step=self.step,
            user_rows=self.user_rows[rows],
            history_ends=self.history_ends[rows],
            moments=self.moments[rows],
            targets=self.targets.take(torch.from_numpy(rows)),
            candidates=self.candidates,
        )

    def held_out(self, events: Sequences) -> HeldOut:
        """Write them as held-out events."""
        starts = np.asarray(events.offsets)[self.user_rows]
        before = concatenated_ranges(starts, self.history_ends)
        return HeldOut(
            positions=self.history_ends,
            targets=self.targets,
            seen=ragged(np.asarray(events.item_rows[before]), self.history_ends - starts),
        )

    def save(self, path: Path) -> None:
        """Write them as one file of arrays."""
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(
            path,
            begin=self.step.begin,
            end=self.step.end,
            user_rows=self.user_rows,
            history_ends=self.history_ends,
            moments=self.moments,
            targets_values=self.targets.values.numpy(),
            targets_offsets=self.targets.offsets.numpy(),
            candidates=self.candidates,
        )


def _twice_at_once(timeline: Timeline, starts: Flags) -> Flags:
    """Say which events repeat an item of their own query, [E]."""
    pairs = (np.cumsum(starts) - 1) * timeline.num_item_rows + timeline.item_rows
    _, first = np.unique(pairs, return_index=True)
    repeated = np.ones(len(pairs), bool)
    repeated[first] = False
    return repeated


def save_events(timeline: Timeline, path: Path) -> None:
    """Write all events, so that models from elsewhere can be fitted on the same ones."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path,
        item_rows=timeline.item_rows,
        offsets=np.asarray(timeline.events.offsets),
        times=timeline.times,
        num_item_rows=timeline.num_item_rows,
    )
