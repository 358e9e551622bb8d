"""Records by ranges of users: each range fits into memory and is one task.

Axes: E events, U user ranks, I item ranks, K ranges of users.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from features.counts import Core, count_events, k_core
from features.histories import in_given_order
from features.ingest import record_dtype
from features.parallel import Runner
from features.preparation.ids import CodesOfAll, counts_by_rank, ranks_of
from features.preparation.prepare import Prepared
from features.records import RecordFile, Records, Rows, compressed, partition
from features.schema import FilterConfig

RANGE_EVENTS = 500_000
"""Events of a range of users, as far as one user does not have more."""
MAX_RANGES = 1_000
"""Of larger data the ranges are larger."""


def ranges_of_users(user_counts: Rows, range_events: int) -> Rows:
    """Cut the user ranks into ranges of about equally many events, [K + 1]."""
    ends = np.cumsum(user_counts)
    num_ranges = max(1, -(-int(ends[-1]) // range_events))
    cuts = np.searchsorted(ends, np.arange(1, num_ranges) * range_events) + 1
    return np.unique(np.concatenate([[0], cuts, [len(user_counts)]]))


@dataclass(frozen=True, kw_only=True)
class PlaceTask:
    """A partition whose records go to their ranges."""

    part: Prepared
    codes: CodesOfAll
    cuts: Rows
    """[K + 1]"""
    sizes: Rows
    """The partition's records of each range, [K]."""
    starts: Rows
    """Where they go, [K]."""
    target: Path


def place_partition(task: PlaceTask) -> None:
    """Write a partition's records, with ranks for codes, into the ranges of users."""
    users, items = ranks_of(task.part, "user"), ranks_of(task.part, "item")
    numbers = np.arange(len(task.sizes), dtype=np.uint32)
    range_of_user = np.repeat(numbers, np.diff(task.cuts))

    def ranked(part: Records) -> Records:
        part["user"] = users[part["user"]]
        part["item"] = items[part["item"]]
        task.codes.apply(part)
        return part

    source = task.part.records()
    target = RecordFile(task.target, source.dtype)
    partition(
        source.slices(), target, ranked, lambda part: range_of_user[part["user"]],
        task.sizes, task.starts,
    )  # fmt: skip
    source.close()
    target.close()


@dataclass(frozen=True, kw_only=True)
class UserRange:
    """The records of some users in a file."""

    path: Path
    fields: tuple[str, ...]
    start: int
    end: int
    first_user: int
    last_user: int
    """Ranks are in [first_user, last_user)."""

    def read(self) -> Records:
        """Read them."""
        file = RecordFile.existing(self.path, record_dtype(self.fields))
        try:
            return file.read(self.start, self.end)
        finally:
            file.close()


def ranges(
    parts: Sequence[Prepared], codes: Sequence[CodesOfAll], num_users: int, path: Path, run: Runner
) -> list[UserRange]:
    """Bring all partitions' records into ranges of users, in a file."""
    counts = np.zeros(num_users, np.int64)
    for part in parts:
        counts += counts_by_rank(part, num_users)
    cuts = ranges_of_users(counts, max(RANGE_EVENTS, int(counts.sum()) // MAX_RANGES))
    bounds = np.concatenate([[0], np.cumsum(np.add.reduceat(counts, cuts[:-1]))])
    cursor = bounds[:-1].copy()
    tasks = []
    for part, codes_of_part in zip(parts, codes, strict=True):
        sizes = np.add.reduceat(counts_by_rank(part, num_users), cuts[:-1])
        tasks.append(
            PlaceTask(
                part=part, codes=codes_of_part, cuts=cuts, sizes=sizes, starts=cursor, target=path
            )
        )
        cursor = cursor + sizes
    for _ in run(place_partition, tasks):
        pass
    fields = parts[0].fields
    return [
        UserRange(
            path=path, fields=fields, start=int(start), end=int(end), first_user=int(first),
            last_user=int(last),
        )
        for (start, end), (first, last) in zip(pairwise(bounds), pairwise(cuts), strict=True)
    ]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class OrderTask:
    """A range to sort into histories."""

    range: UserRange
    target: Path
    """Another file, so that a task that is run twice finds its records as they were."""
    num_items: int
    max_user_events: int | None


@dataclass(frozen=True, kw_only=True)
class OrderedRange:
    """A range in the order of users and moments."""

    range: UserRange
    user_counts: Rows
    item_counts: Rows
    """[I]"""
    num_duplicates: int
    num_over_cap: int


def order_range(task: OrderTask) -> OrderedRange:
    """Sort a range into histories, without repetitions and beyond no user's cap."""
    given = task.range
    ordered, num_duplicates, num_over_cap = in_given_order(given.read(), task.max_user_events)
    target = RecordFile(task.target, record_dtype(given.fields))
    target.write(given.start, ordered)
    target.close()
    users, items = count_events(
        ordered["user"], ordered["item"], given.first_user, given.last_user, task.num_items
    )
    return OrderedRange(
        range=UserRange(
            path=task.target, fields=given.fields, start=given.start,
            end=given.start + len(ordered), first_user=given.first_user, last_user=given.last_user,
        ),
        user_counts=users, item_counts=items,
        num_duplicates=num_duplicates, num_over_cap=num_over_cap,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CountTask:
    """A range to count."""

    range: UserRange
    users: Path
    """Mask of users, [U]; likewise of items."""
    items: Path
    num_items: int


def count_range(task: CountTask) -> tuple[Rows, Rows]:
    """Count the events of each user of a range and of each item that masks keep."""
    records = task.range.read()
    users, items = np.load(task.users, mmap_mode="r"), np.load(task.items, mmap_mode="r")
    kept = users[records["user"]] & items[records["item"]]
    first, last = task.range.first_user, task.range.last_user
    return count_events(records["user"][kept], records["item"][kept], first, last, task.num_items)


@dataclass
class OrderedEvents:
    """Events sorted by user rank and moment, in a file."""

    ranges: list[UserRange]
    user_counts: Rows
    """[U]"""
    item_counts: Rows
    """[I]"""
    num_duplicates: int
    num_over_cap: int

    @property
    def length(self) -> int:
        return int(self.user_counts.sum())

    def core(self, filters: FilterConfig, scratch: Path, run: Runner) -> Core:
        """Find the users and items that have enough events."""

        def count(users: NDArray[np.bool_], items: NDArray[np.bool_]) -> tuple[Rows, Rows]:
            paths = scratch / "core_users.npy", scratch / "core_items.npy"
            for path, mask in zip(paths, (users, items), strict=True):
                np.save(path, mask)
            tasks = (
                CountTask(range=one, users=paths[0], items=paths[1], num_items=len(items))
                for one in self.ranges
            )
            return summed(self.ranges, run(count_range, tasks), len(users), len(items))

        minima = filters.min_user_events, filters.min_item_events
        return k_core(count, self.user_counts, self.item_counts, *minima)


def summed(
    ranges: Sequence[UserRange], counts: Iterator[tuple[Rows, Rows]], num_users: int, num_items: int
) -> tuple[Rows, Rows]:
    """Put counts of ranges together, [U] and [I]."""
    of_users, of_items = np.zeros(num_users, np.int64), np.zeros(num_items, np.int64)
    for one, (users, items) in zip(ranges, counts, strict=True):
        of_users[one.first_user : one.last_user] = users
        of_items += items
    return of_users, of_items


def order_events(
    given: Sequence[UserRange], num_users: int, num_items: int, cap: int | None, path: Path,
    run: Runner,
) -> OrderedEvents:  # fmt: skip
    """Sort all events into histories, without their repetitions and beyond no user's cap."""
    tasks = (
        OrderTask(range=one, target=path, num_items=num_items, max_user_events=cap) for one in given
    )
    events = OrderedEvents([], np.zeros(num_users, np.int64), np.zeros(num_items, np.int64), 0, 0)
    for part in run(order_range, tasks):
        events.ranges.append(part.range)
        events.user_counts[part.range.first_user : part.range.last_user] = part.user_counts
        events.item_counts += part.item_counts
        events.num_duplicates += part.num_duplicates
        events.num_over_cap += part.num_over_cap
    return events


@dataclass(frozen=True, kw_only=True)
class RowFiles:
    """Files of the dense row of each rank, 0 for what is dropped."""

    users: Path
    items: Path

    def dense(self, records: Records) -> Records:
        """Leave out what is dropped and put rows for ranks."""
        users = np.load(self.users, mmap_mode="r")[records["user"]]
        items = np.load(self.items, mmap_mode="r")[records["item"]]
        kept = (users > 0) & (items > 0)
        records = compressed(records, kept)
        records["user"], records["item"] = users[kept], items[kept]
        return records
