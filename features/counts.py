"""Drop duplicates, cap users' events, and iterate the k-core.

Axes: E events, U user codes, I item codes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from features.records import Records, Rows, stable_order, take

Mask = NDArray[np.bool_]


def starts_of_runs(*columns: NDArray[Any]) -> Mask:
    """Mark the first of each run of equal neighbours, [E]."""
    first = np.ones(len(columns[0]), np.bool_)
    first[1:] = columns[0][1:] != columns[0][:-1]
    for column in columns[1:]:
        first[1:] |= column[1:] != column[:-1]
    return first


def first_of_duplicates(records: Records, order_fields: Sequence[str]) -> Mask:
    """Mark all but repetitions of the same user, item, time, sequence index and type, [E]."""
    kept = np.ones(len(records), np.bool_)
    starts = starts_of_runs(*(records[name] for name in ("user", *order_fields)))
    # Only events at one and the same moment can repeat each other: mostly few.
    tied = ~starts
    tied[:-1] |= ~starts[1:]
    places = np.flatnonzero(tied)
    if not len(places):
        return kept
    group = np.cumsum(starts)[places]
    some = take(records, places)
    order = stable_order([group, some["item"], some["type"]])
    some, group = take(some, order), group[order]
    first = starts_of_runs(group, some["item"], some["type"])
    kept[places[order[~first]]] = False
    return kept


def latest_of_users(users: NDArray[np.uint32], limit: int) -> Mask:
    """Mark each user's last ``limit`` events, [E]; users are contiguous."""
    starts = np.flatnonzero(starts_of_runs(users))
    lengths = np.diff(np.append(starts, len(users)))
    if not len(lengths) or lengths.max() <= limit:
        return np.ones(len(users), np.bool_)
    ends = np.repeat(starts + lengths, lengths)
    kept: Mask = np.arange(len(users)) >= ends - limit
    return kept


class Core(NamedTuple):
    """Users and items of the core, and their events."""

    users: Mask
    """[U]"""
    items: Mask
    """[I]"""
    user_counts: Rows
    """[U]"""


def k_core(
    count: Callable[[Mask, Mask], tuple[Rows, Rows]],
    user_counts: Rows,
    item_counts: Rows,
    min_user_events: int,
    min_item_events: int,
) -> Core:
    """Drop users and items with too few events until all that are left have enough.

    Args:
        count: Counts the events of each user [U] and item [I] that two masks keep.
        user_counts: Events of each user before any is dropped, [U].
        item_counts: Events of each item, [I].
    """
    min_user_events, min_item_events = max(1, min_user_events), max(1, min_item_events)
    while True:
        users, items = user_counts >= min_user_events, item_counts >= min_item_events
        if users[user_counts > 0].all() and items[item_counts > 0].all():
            return Core(users, items, user_counts)
        user_counts, item_counts = count(users, items)
