"""All events into the order of users' histories, on disk: dense ranks, ranges of users, sorts.

Axes: E events, U user ranks (a user's place in the vocabulary before anything is dropped),
I item ranks, K ranges of users.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from features.counts import Core, Pairs, count_events, k_core
from features.encoding import Dictionary
from features.histories import in_given_order
from features.ingest import Ingested
from features.parallel import in_order
from features.records import RecordFile, Records, Rows, partition
from features.schema import FilterConfig
from features.vocabulary import extended, rows_of

RANGE_EVENTS = 500_000
"""Events of a range of users, as far as one user does not have more."""


@dataclass
class Ranks:
    """Ids by rank: those of an earlier vocabulary as they were, then the others ascending."""

    ids: pl.Series
    num_previous: int
    of_code: NDArray[np.uint32]

    @classmethod
    def of(cls, dictionary: Dictionary, previous: pl.Series | None) -> Ranks:
        texts = dictionary.texts()
        ids = extended(texts, previous)
        ranks = (rows_of(texts, ids) - 1).astype(np.uint32)
        return cls(ids, 0 if previous is None else len(previous), ranks)


@dataclass
class OrderedEvents:
    """Events sorted by user rank and moment, in a file."""

    records: RecordFile
    bounds: Rows
    """Where the ranges of users begin, and the end, [K + 1]."""
    user_counts: Rows
    """[U]"""
    item_counts: Rows
    """[I]"""
    num_duplicates: int
    num_over_cap: int

    def core(self, filters: FilterConfig) -> Core:
        """Find the users and items that have enough events."""

        def slices() -> Iterator[Pairs]:
            for part in self.records.slices():
                yield np.ascontiguousarray(part["user"]), np.ascontiguousarray(part["item"])

        return k_core(
            slices,
            self.user_counts,
            self.item_counts,
            filters.min_user_events,
            filters.min_item_events,
        )


def ranges_of_users(user_counts: Rows, range_events: int) -> Rows:
    """Cut the user ranks into ranges of about equally many events, [K + 1]."""
    ends = np.cumsum(user_counts)
    num_ranges = max(1, -(-int(ends[-1]) // range_events))
    cuts = np.searchsorted(ends, np.arange(1, num_ranges) * range_events) + 1
    return np.unique(np.concatenate([[0], cuts, [len(user_counts)]]))


def by_ranges_of_users(
    ingested: Ingested, users: Ranks, items: Ranks, directory: Path, range_events: int
) -> tuple[RecordFile, Rows]:
    """Move records, with ranks for codes, into ranges of users; return also where these begin."""
    counts = np.zeros(len(users.ids), np.int64)
    counts[users.of_code] = ingested.user_counts
    cuts = ranges_of_users(counts, range_events)
    sizes = np.add.reduceat(counts, cuts[:-1])
    range_of_user = np.repeat(np.arange(len(sizes), dtype=np.uint32), np.diff(cuts))

    def ranked(part: Records) -> Records:
        part["user"] = users.of_code[part["user"]]
        part["item"] = items.of_code[part["item"]]
        return part

    target = RecordFile(directory / "ranged", ingested.records.dtype)
    parts = ingested.records.slices()
    partition(parts, target, ranked, lambda part: range_of_user[part["user"]], sizes)
    return target, np.concatenate([[0], np.cumsum(sizes)])


def order_events(
    ingested: Ingested,
    users: Ranks,
    items: Ranks,
    filters: FilterConfig,
    directory: Path,
    range_events: int = RANGE_EVENTS,
) -> OrderedEvents:
    """Sort all events into histories, without their repetitions and beyond no user's cap."""
    ranged, bounds = by_ranges_of_users(ingested, users, items, directory, range_events)
    ingested.records.close()
    ordered = OrderedEvents(
        records=ranged,
        bounds=np.zeros_like(bounds),
        user_counts=np.zeros(len(users.ids), np.int64),
        item_counts=np.zeros(len(items.ids), np.int64),
        num_duplicates=0,
        num_over_cap=0,
    )
    work = partial(in_given_order, max_user_events=filters.max_user_events)
    parts = in_order(work, ranged.slices(bounds))
    end = 0
    for number, part in enumerate(parts, start=1):
        # In place: a range is read before it, or what is left of it, is written.
        ranged.write(end, part.records)
        end += len(part.records)
        ordered.bounds[number] = end
        ordered.num_duplicates += part.num_duplicates
        ordered.num_over_cap += part.num_over_cap
        if len(part.records):
            users_of, items_of = part.records["user"], part.records["item"]
            count_events(ordered.user_counts, ordered.item_counts, users_of, items_of)
    ranged.length = end
    return ordered
