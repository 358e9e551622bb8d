"""Item-to-item: what else appears near this item in people's histories (Linden et al., 2003).

Two events of one user, d events apart, add d ** -distance_power to the weight of the pair in the
direction of time, and ``reverse_weight`` times that in the other direction. Pairs further apart
than ``window`` do not count. A pair's weight is divided by powers of both items' event counts, so
that bestsellers are neither everyone's neighbour nor drowned by their own many pairs.

Only each item's ``num_neighbours`` strongest pairs are kept (``item_weights.model``).

Axes: E events, V events a model may see, W distances in both directions, P pairs, N item rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from recsys.data.dataset import concatenated_ranges
from recsys.models.configs import ItemToItemConfig, choices_of
from recsys.models.item_weights.model import (
    HistoryWeights,
    ItemNeighbours,
    ItemWeights,
    WeightTable,
)

Rows = NDArray[np.int64]

PAIRS_PER_BLOCK = 1 << 24
"""Pairs that are in memory at a time, about 1 GiB; one item's pairs always go together."""
MAX_THREADS = 8


class _Events(NamedTuple):
    """The events a model may see, users one after the other without gaps."""

    rows: Rows
    """[V] item of each event."""
    first: Rows
    """[V] index of the first event of the same user."""
    end: Rows
    """[V] index after the last event of the same user."""


def _visible_events(item_rows: Rows, starts: Rows, ends: Rows) -> _Events:
    lengths = ends - starts
    ends_here = np.cumsum(lengths)
    return _Events(
        rows=np.asarray(item_rows[concatenated_ranges(starts, ends)]),
        first=np.repeat(ends_here - lengths, lengths),
        end=np.repeat(ends_here, lengths),
    )


def _item_blocks(counts: Rows, events_per_block: int) -> Iterator[tuple[int, int]]:
    """Cut the items into ranges of about ``events_per_block`` events, never within an item."""
    before = np.concatenate([[0], np.cumsum(counts)])
    first = 1  # row 0 is padding and has no neighbours
    while first < len(counts):
        end = int(np.searchsorted(before, before[first] + events_per_block, side="right")) - 1
        end = min(max(end, first + 1), len(counts))
        yield first, end
        first = end


def _pair_weights(
    events: _Events, anchors: Rows, num_items: int, config: ItemToItemConfig
) -> tuple[Rows, NDArray[np.float64]]:
    """Sum the weight of every (item, other item) pair that starts at one of the anchors.

    Returns:
        ``item * num_items + other`` of each distinct pair, ascending, and its weight.
    """
    reach = np.arange(1, config.window + 1)
    distances = np.concatenate([reach, -reach])  # [W]
    along = reach ** -choices_of(config.distance_power)[0]
    weight_of = np.concatenate([along, config.reverse_weight * along])  # [W]

    codes = []
    for column, distance in enumerate(distances):
        others = anchors + distance
        inside = (others >= events.first[anchors]) & (others < events.end[anchors])
        source = events.rows[anchors[inside]]
        target = events.rows[others[inside]]
        distinct = (source != target) & (target != 0)
        pair = source[distinct] * num_items + target[distinct]
        codes.append(pair * len(distances) + column)
    # Distance rides in the low digits of the pair's code: one sort of plain integers then groups
    # equal pairs, which is several times faster than an argsort of pairs beside weights.
    sorted_codes = np.sort(np.concatenate(codes))
    pairs, columns = np.divmod(sorted_codes, len(distances))
    heads = np.flatnonzero(np.diff(pairs, prepend=-1))
    if len(heads) == 0:
        return pairs, np.empty(0)
    return pairs[heads], np.add.reduceat(weight_of[columns], heads)


def _strongest(
    sources: Rows, targets: Rows, weights: NDArray[np.float32], limit: int
) -> NDArray[np.bool_ | np.int64]:
    """Order pairs by (source, weight descending, target) and keep ``limit`` per source.

    Takes pairs in (source, target) order. Positive floats compare like their bits read as
    integers, so source and weight fit one sort key.
    """
    key = (sources << 32) - weights.view(np.int32).astype(np.int64)
    order = torch.from_numpy(key).sort(stable=True).indices.numpy()
    begins = np.flatnonzero(np.diff(sources[order], prepend=-1))
    rank = np.arange(len(order)) - np.repeat(begins, np.diff(begins, append=len(order)))
    kept: Rows = order[rank < limit]
    return kept


def count_neighbours(
    item_rows: Rows, starts: Rows, ends: Rows, num_item_rows: int, config: ItemToItemConfig
) -> WeightTable:
    """Build the neighbour table; the arguments are those of ``item_to_item_model``.

    Works through the items in blocks, so memory is that of the events plus one block.
    """
    events = _visible_events(item_rows, starts, ends)
    counts = np.bincount(events.rows, minlength=num_item_rows)  # [N]
    by_item = np.argsort(events.rows, kind="stable")  # [V]
    item_begin = np.cumsum(counts) - counts
    popularity = np.maximum(counts, 1).astype(np.float64)
    source_scale, target_scale = (
        popularity**-config.source_power,
        popularity**-config.target_power,
    )

    def neighbours(block: tuple[int, int]) -> tuple[Rows, Rows, NDArray[np.float32]]:
        first, end = block
        anchors = by_item[item_begin[first] : item_begin[end - 1] + counts[end - 1]]
        pairs, sums = _pair_weights(events, anchors, num_item_rows, config)
        source, target = np.divmod(pairs, num_item_rows)
        scaled = (sums * source_scale[source] * target_scale[target]).astype(np.float32)
        kept = _strongest(source, target, scaled, config.num_neighbours)
        return source[kept], target[kept], scaled[kept]

    lengths = np.zeros(num_item_rows, np.int64)
    rows, weights = [np.empty(0, np.int32)], [np.empty(0, np.float32)]
    num_threads = max(1, min(MAX_THREADS, torch.get_num_threads()))
    events_per_block = PAIRS_PER_BLOCK // (2 * config.window * num_threads)
    blocks = _item_blocks(counts, max(1, events_per_block))
    with ThreadPoolExecutor(num_threads) as threads:
        # numpy sorts and adds without the interpreter; a few blocks at a time bound the memory.
        while some := list(islice(blocks, num_threads)):
            for source, target, weight in threads.map(neighbours, some):
                lengths += np.bincount(source, minlength=num_item_rows)
                rows.append(target.astype(np.int32))
                weights.append(weight)
    return WeightTable(
        offsets=torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)])),
        rows=torch.from_numpy(np.concatenate(rows)),
        weights=torch.from_numpy(np.concatenate(weights)),
    )


def item_to_item_model(
    item_rows: Rows, starts: Rows, ends: Rows, num_item_rows: int, config: ItemToItemConfig
) -> ItemWeights:
    """Score items by their co-occurrence with the user's latest items.

    Of settings with several values the first is taken.

    Args:
        item_rows: All users' events, oldest first within a user, [E].
        starts: Where each user's visible events begin, [U].
        ends: Where they end (exclusive), [U].
        num_item_rows: Item rows with row 0.
    """
    table = count_neighbours(item_rows, starts, ends, num_item_rows, config)
    power = choices_of(config.history_power)[0]
    history = HistoryWeights(power=power, max_events=config.max_history)
    return ItemWeights(table, history, asdict(config))


WINDOW = 20
"""Largest distance between two events that make their items neighbours, chosen on validation."""


def counted_neighbours(
    item_rows: Rows, starts: Rows, ends: Rows, num_item_rows: int, num_neighbours: int
) -> ItemNeighbours:
    """Count which items occur near each other, either way, near ones more."""
    # One more than K, because an item that repeats is near itself.
    config = ItemToItemConfig(
        num_neighbours=num_neighbours + 1,
        window=WINDOW,
        distance_power=1.0,
        reverse_weight=1.0,
        source_power=0.5,
        target_power=0.5,
    )
    counted = count_neighbours(item_rows, starts, ends, num_item_rows, config)
    return ItemNeighbours.of(counted, num_neighbours)
