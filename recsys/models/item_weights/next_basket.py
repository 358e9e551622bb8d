"""From a basket to the next ones: which items follow which, the same item included.

Events of one user at the same time are one basket. An item of a basket and one of the d-th basket
after it add 1 / d to their weight, which is divided by powers of both items' events. An item that
comes again has a weight from itself, unlike in item-to-item.

Axes: V events, K baskets, N item rows, S items of a block.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from recsys.data.dataset import concatenated_ranges
from recsys.models.configs import NextBasketConfig, RepeatsConfig
from recsys.models.item_weights.co_occurrence import MAX_CELLS, Strongest, WeightBlock
from recsys.models.item_weights.model import HistoryWeights, ItemWeights, WeightTable


def repeats_model(num_item_rows: int, config: RepeatsConfig) -> ItemWeights:
    """Weigh every item by itself; the first power and decay are taken."""
    each = torch.arange(num_item_rows)
    table = WeightTable(
        offsets=torch.cat([torch.zeros(1, dtype=torch.int64), each]),
        rows=each[1:].to(torch.int32),
        weights=torch.ones(num_item_rows - 1),
    )
    history = HistoryWeights(power=config.history_power[0], decay=config.history_decay[0])
    return ItemWeights(table, history, asdict(config))


Rows = NDArray[np.int64]

MAX_BASKET = 100
"""Items of a basket that form pairs, the first of it."""
NUM_NEIGHBOURS = 200
"""Strongest pairs of an item that are kept."""


class Baskets(NamedTuple):
    """Events in baskets, users one after the other, oldest basket first."""

    rows: Rows
    """[V] item of each event."""
    basket: Rows
    """[V] basket of each event."""
    offsets: Rows
    """[K + 1] events of each basket."""
    user: Rows
    """[K] owner of each basket."""

    @classmethod
    def of(cls, item_rows: Rows, times: Rows, starts: Rows, ends: Rows) -> Baskets:
        """Cut the events that a model may see; the arguments are those of ``UserItems.of``."""
        places = concatenated_ranges(starts, ends)
        users = np.repeat(np.arange(len(starts)), ends - starts)
        clock, rows = np.asarray(times[places]), np.asarray(item_rows[places])
        begins = (np.diff(users, prepend=-1) != 0) | (np.diff(clock, prepend=0) != 0)
        basket = np.cumsum(begins) - 1
        first = np.flatnonzero(begins)
        kept = np.arange(len(rows)) - first[basket] < MAX_BASKET
        sizes = np.bincount(basket[kept], minlength=len(first))
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        return cls(rows[kept], basket[kept], offsets, users[first])


def next_basket_model(
    baskets: Baskets, num_item_rows: int, config: NextBasketConfig
) -> ItemWeights:
    """Count what follows what; the first power is taken."""
    counts = np.bincount(baskets.rows, minlength=num_item_rows)
    order = np.argsort(baskets.rows, kind="stable")
    ends = np.cumsum(counts)
    popularity = np.maximum(counts, 1).astype(np.float64)
    source = torch.from_numpy(popularity**-config.source_power)
    target = torch.from_numpy(popularity**-config.target_power)
    kept = Strongest(num_item_rows, NUM_NEIGHBOURS)
    every, size = torch.arange(num_item_rows), max(1, MAX_CELLS // num_item_rows)
    for begin in range(1, num_item_rows, size):
        rows = np.arange(begin, min(begin + size, num_item_rows))
        events = order[ends[begin] - counts[begin] : ends[rows[-1]]]
        pairs = torch.from_numpy(_followers(baskets, events, rows, num_item_rows, config.window))
        weights = pairs * source[torch.from_numpy(rows), None] * target
        kept.add(WeightBlock(rows, every, weights.float()))
    history = HistoryWeights(power=config.history_power[0], distinct=True)
    return ItemWeights(kept.table(), history, asdict(config))


def _followers(
    baskets: Baskets, events: Rows, rows: Rows, num_item_rows: int, window: int
) -> NDArray[np.float64]:
    """Weigh the items of the baskets after some items' events, [S, N]."""
    cells = len(rows) * num_item_rows
    found = np.zeros(cells)
    for distance in range(1, window + 1):
        later = baskets.basket[events] + distance
        there = later < len(baskets.user)
        same = np.zeros(len(events), np.bool_)
        same[there] = baskets.user[later[there]] == baskets.user[baskets.basket[events[there]]]
        some, later = events[same], later[same]
        begins, ends = baskets.offsets[later], baskets.offsets[later + 1]
        code = np.repeat((baskets.rows[some] - rows[0]) * num_item_rows, ends - begins)
        code += baskets.rows[concatenated_ranges(begins, ends)]
        found += np.bincount(code, minlength=cells) / distance
    return found.reshape(len(rows), num_item_rows)
