"""Records by ranges of users: each range fits into memory and is one task.

Axes: E events, U user ranks, I item ranks, K ranges of users.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from features.histories import Core, in_given_order, k_core
from features.ingest import record_dtype
from features.parallel import in_order
from features.preparation.ids import CodesOfAll, counts_by_rank, read_ranks
from features.preparation.prepare import Prepared
from features.records import RecordFile, Records, Rows, compressed, partition
from features.schema import FilterConfig

RANGE_EVENTS = 500_000
"""Events of a range of users, as far as one user does not have more."""
MAX_RANGES = 1_000
"""Larger data has larger ranges."""


def ranges_of_users(user_counts: Rows, range_events: int) -> Rows:
    """Cut the user ranks into ranges of about equally many events, [K + 1]."""
    ends = np.cumsum(user_counts)
    num_ranges = max(1, -(-int(ends[-1]) // range_events))
    cuts = np.searchsorted(ends, np.arange(1, num_ranges) * range_events) + 1
    return np.unique(np.concatenate([[0], cuts, [len(user_counts)]]))


class RangeShare(NamedTuple):
    """A partition, the codes of its texts, its records of each range and their places, [K] each."""

    part: Prepared
    codes: CodesOfAll
    sizes: Rows
    starts: Rows


def place_partition(share: RangeShare, cuts: Rows, path: Path) -> None:
    """Write a partition's records, with ranks for codes, into the ranges of users."""
    users, items = read_ranks(share.part, "user"), read_ranks(share.part, "item")
    numbers = np.arange(len(share.sizes), dtype=np.uint16)
    range_of_user = np.repeat(numbers, np.diff(cuts))

    def ranked(part: Records) -> Records:
        part["user"] = users[part["user"]]
        part["item"] = items[part["item"]]
        share.codes.apply(part)
        return part

    source = share.part.records()
    target = RecordFile(path, source.dtype)
    partition(
        source.slices(),
        target,
        ranked,
        lambda part: range_of_user[part["user"]],
        share.sizes,
        share.starts,
    )
    source.close()
    target.close()


@dataclass(frozen=True)
class UserRange:
    """The records of some users in a file."""

    path: Path
    fields: tuple[str, ...]
    start: int
    end: int
    first_user: int
    last_user: int
    """Ranks are in [first_user, last_user)."""

    def counts(self, records: Records, num_items: int) -> tuple[Rows, Rows]:
        """Count records of these users by user and by item, [I]."""
        users = records["user"] - np.uint32(self.first_user)
        of_users = np.bincount(users, minlength=self.last_user - self.first_user)
        return of_users, np.bincount(records["item"], minlength=num_items)

    def read(self) -> Records:
        """Read them."""
        file = RecordFile.existing(self.path, record_dtype(self.fields))
        try:
            return file.read(self.start, self.end)
        finally:
            file.close()


def ranges(
    parts: Sequence[Prepared], codes: Sequence[CodesOfAll], num_users: int, path: Path
) -> list[UserRange]:
    """Bring all partitions' records into ranges of users, in a file."""
    of_parts = [counts_by_rank(part, num_users) for part in parts]
    counts = np.sum(of_parts, axis=0)
    cuts = ranges_of_users(counts, max(RANGE_EVENTS, int(counts.sum()) // MAX_RANGES))
    bounds = np.concatenate([[0], np.cumsum(np.add.reduceat(counts, cuts[:-1]))])
    shares, cursor = [], bounds[:-1]
    for part, codes_of_part, own in zip(parts, codes, of_parts, strict=True):
        sizes = np.add.reduceat(own, cuts[:-1])
        shares.append(RangeShare(part, codes_of_part, sizes, cursor))
        cursor = cursor + sizes
    for _ in in_order(partial(place_partition, cuts=cuts, path=path), shares):
        pass
    return [
        UserRange(path, parts[0].fields, int(start), int(end), int(first), int(last))
        for (start, end), (first, last) in zip(pairwise(bounds), pairwise(cuts), strict=True)
    ]


class OrderedRange(NamedTuple):
    """A range in the order of users and moments, and its events by user and by item, [I]."""

    range: UserRange
    user_counts: Rows
    item_counts: Rows
    num_duplicates: int
    num_over_cap: int


def order_range(given: UserRange, num_items: int, cap: int | None, path: Path) -> OrderedRange:
    """Sort a range into histories, without repetitions and beyond no user's cap.

    It goes to another file, so that a task that is run twice finds its records as they were.
    """
    ordered, num_duplicates, num_over_cap = in_given_order(given.read(), cap)
    target = RecordFile(path, record_dtype(given.fields))
    target.write(given.start, ordered)
    target.close()
    own = replace(given, path=path, end=given.start + len(ordered))
    counts = own.counts(ordered, num_items)
    return OrderedRange(own, *counts, num_duplicates, num_over_cap)


def count_range(given: UserRange, users: Path, items: Path, num_items: int) -> tuple[Rows, Rows]:
    """Count the events of each user of a range and of each item that masks in files keep."""
    records = given.read()
    of_users, of_items = np.load(users, mmap_mode="r"), np.load(items, mmap_mode="r")
    kept = of_users[records["user"]] & of_items[records["item"]]
    return given.counts(records[kept], num_items)


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

    def core(self, filters: FilterConfig, scratch: Path) -> Core:
        """Find the users and items that have enough events."""

        def count(users: NDArray[np.bool_], items: NDArray[np.bool_]) -> tuple[Rows, Rows]:
            paths = scratch / "core_users.npy", scratch / "core_items.npy"
            for path, mask in zip(paths, (users, items), strict=True):
                np.save(path, mask)
            task = partial(count_range, users=paths[0], items=paths[1], num_items=len(items))
            of_users, of_items = np.zeros(len(users), np.int64), np.zeros(len(items), np.int64)
            for one, counts in zip(self.ranges, in_order(task, self.ranges), strict=True):
                of_users[one.first_user : one.last_user] = counts[0]
                of_items += counts[1]
            return of_users, of_items

        minima = filters.min_user_events, filters.min_item_events
        return k_core(count, self.user_counts, self.item_counts, *minima)


def order_events(
    given: Sequence[UserRange], num_users: int, num_items: int, cap: int | None, path: Path
) -> OrderedEvents:
    """Sort all events into histories, without repetitions and beyond no user's cap."""
    events = OrderedEvents([], np.zeros(num_users, np.int64), np.zeros(num_items, np.int64), 0, 0)
    for part in in_order(partial(order_range, num_items=num_items, cap=cap, path=path), given):
        events.ranges.append(part.range)
        events.user_counts[part.range.first_user : part.range.last_user] = part.user_counts
        events.item_counts += part.item_counts
        events.num_duplicates += part.num_duplicates
        events.num_over_cap += part.num_over_cap
    return events


@dataclass(frozen=True, kw_only=True)
class RowFiles:
    """Files of the dense row of each rank, 0 if it is dropped."""

    users: Path
    items: Path

    def dense(self, records: Records) -> Records:
        """Leave out dropped events and put rows for ranks."""
        users = np.load(self.users, mmap_mode="r")[records["user"]]
        items = np.load(self.items, mmap_mode="r")[records["item"]]
        kept = (users > 0) & (items > 0)
        records = compressed(records, kept)
        records["user"], records["item"] = users[kept], items[kept]
        return records
