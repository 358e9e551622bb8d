"""Cut each user's history into train, validation and test.

Axes: U users, in row order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from features.encoding import hashed
from features.schema import NewestSplit, SplitConfig

Rows = NDArray[np.int64]
Flags = NDArray[np.bool_]
SECONDS_PER_DAY = 86_400
MIN_EVENTS_TO_SPLIT = 3
MIN_KNOWN_USERS = 50
"""Users with earlier events who have some in validation, and in test, for ``auto`` to take
``global_time``: with fewer it would choose by chance."""
USERS_PER_SLICE = 100_000


class Ends(NamedTuple):
    """Counts of a user's events that precede the end of train and of validation, both [U]."""

    train: Rows
    validation: Rows


class Cuts(NamedTuple):
    """Unix seconds at which validation and test begin."""

    validation: int
    test: int


def leave_one_out(counts: Rows, targets: Flags | None = None) -> Ends:
    """Hold out the last event for test and the one before for validation.

    Users with fewer than three events have all of them in train. Of ``targets``, which mark events
    that may be held out, [E], it is the last and the one before.
    """
    if targets is None:
        split = counts >= MIN_EVENTS_TO_SPLIT
        return Ends(counts - 2 * split, counts - split)
    starts, places = np.cumsum(counts) - counts, np.flatnonzero(targets)
    until = np.searchsorted(places, starts + counts)  # targets before each user's end
    places = np.concatenate([[-1, -1], places])
    previous, last = places[until] - starts, places[until + 1] - starts
    split = previous >= 1
    return Ends(np.where(split, previous, counts), np.where(split, last, counts))


def num_held_out(offsets: Rows, ends: Ends, targets: Flags | None) -> tuple[Rows, Rows]:
    """Count each user's events of validation and test, or those that ``targets`` [E] marks."""
    bounds = [offsets[:-1] + end for end in (*ends, np.diff(offsets))]
    if targets is not None:
        before = np.concatenate([[0], np.cumsum(targets)])
        bounds = [before[end] for end in bounds]
    return bounds[1] - bounds[0], bounds[2] - bounds[1]


def midnights(events_per_day: Rows, first_day: int, split: SplitConfig) -> Cuts:
    """Choose the midnights (UTC) nearest to the configured shares of events."""
    before = np.concatenate([[0], np.cumsum(events_per_day)])  # events before each day
    total = before[-1]
    targets = [1 - split.validation_share - split.test_share, 1 - split.test_share]
    days = [int(np.abs(before - share * total).argmin()) for share in targets]
    if not 0 < days[0] < days[1] < len(events_per_day):
        raise ValueError(
            f"a global_time split needs train, validation and test to fall on different days, "
            f"but the events span {len(events_per_day)} day(s); use splits.kind = "
            '"leave_one_out" or change the shares'
        )
    return Cuts(*((first_day + day) * SECONDS_PER_DAY for day in days))


def global_time(times: Rows, offsets: Rows, cuts: Cuts) -> Ends:
    """Cut all users' events at the same two moments.

    Args:
        times: Unix seconds of all users' events, ascending within a user, [E].
        offsets: Where each user's events begin, and the end, [U + 1].
    """
    ends = [np.zeros(len(offsets) - 1, np.int64) for _ in cuts]
    # A slice of users at a time, so that memory stays flat.
    for first in range(0, len(offsets) - 1, USERS_PER_SLICE):
        last = min(first + USERS_PER_SLICE, len(offsets) - 1)
        some = np.asarray(times[offsets[first] : offsets[last]])
        bounds = offsets[first : last + 1] - offsets[first]
        for end, cut in zip(ends, cuts, strict=True):
            before = np.concatenate([[0], np.cumsum(some < cut)])
            end[first:last] = np.diff(before[bounds])
    return Ends(*ends)


def why_not_by_time(ends: Ends, held_out: tuple[Rows, Rows]) -> str | None:
    """Explain why a split by time leaves too few users to measure by, or return None."""
    known = min(
        int(np.count_nonzero((begin > 0) & (number > 0)))
        for begin, number in zip(ends, held_out, strict=True)
    )
    if known >= MIN_KNOWN_USERS:
        return None
    return (
        f"only {known} users with earlier events have one after the cut, {MIN_KNOWN_USERS} are "
        "needed"
    )


def newest_of_some(times: Rows, offsets: Rows, split: NewestSplit) -> Ends:
    """Hold out the events since a moment of a draw of users; there is no validation."""
    before = global_time(times, offsets, Cuts(split.since, split.since)).train
    counts = np.diff(offsets)
    num_new = int(np.count_nonzero(before < counts))
    share = min(max(split.share, split.min_users / max(1, num_new)), 0.5)
    drawn = hashed(np.arange(len(counts)), split.seed) < np.uint64(share * 2**64)
    ends = np.where(drawn & (before > 0), before, counts)
    return Ends(ends, ends)
