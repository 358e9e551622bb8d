"""Item-kNN: items that share users, by BM25's weights and the cosine (Robertson et al., 1994).

A user with many items says less of each pair, a rare item of the history more: a pair counts
1 / (1 + length_weight * length / mean length) for each common user, times the idf of the history's
item, over the root of both items' users. An event that is ``age`` days older than the newest one
counts 2 ** (-age / half_life_days).

Axes: P distinct items of all users, U users, N item rows.
"""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import torch

from recsys.models.configs import NO_DECAY, ItemKnnConfig
from recsys.models.item_weights.co_occurrence import (
    CoOccurrence,
    Strongest,
    UserItems,
    Values,
    WeightBlock,
)
from recsys.models.item_weights.model import HistoryWeights, ItemWeights

SECONDS_PER_DAY = 86_400
PAIRS_FROM = 20_000
"""Item rows from which items are counted by the pairs that there are: a row for each of them has a
cell for every other, which for a million items takes hours."""


def item_knn_model(items: UserItems, config: ItemKnnConfig) -> ItemWeights:
    """Weigh each item's neighbours by the first of each setting."""
    values = _values(items, config.half_life_days[0])
    lengths = items.lengths()
    mean = max(1.0, float(lengths[lengths > 0].mean()) if lengths.any() else 1.0)
    user_weights = 1 / (1 + config.length_weight[0] * lengths / mean)
    pairs = CoOccurrence(items, values, user_weights.astype(np.float32))
    counts = items.counts()
    num_users = int((lengths > 0).sum())
    idf = np.log((num_users - counts + 0.5) / (counts + 0.5) + 1)
    root = np.sqrt(np.maximum(pairs.diagonal(), 1e-12))
    source, target = torch.from_numpy((idf / root).astype(np.float32)), torch.from_numpy(1 / root)
    kept = Strongest(items.num_item_rows, config.num_neighbours)
    counted = np.flatnonzero(counts)
    counted = counted[counted > 0]
    if items.num_item_rows > PAIRS_FROM:
        for block in pairs.pair_blocks(counted):
            own, others = torch.from_numpy(block.rows), torch.from_numpy(block.others)
            weights = torch.from_numpy(block.counts) * source[own] * target[others]
            kept.add_pairs(own, others, weights.masked_fill_(own == others, 0))
    else:
        every = torch.arange(items.num_item_rows)
        for rows, shared in pairs.blocks(counted):
            own = torch.from_numpy(rows)
            weights = torch.from_numpy(shared) * source[own, None] * target
            weights[torch.arange(len(own)), own] = 0
            kept.add(WeightBlock(rows, every, weights))
    history = HistoryWeights(
        power=config.history_power[0], max_events=config.max_history, distinct=True
    )
    return ItemWeights(kept.table(), history, asdict(config))


def _values(items: UserItems, half_life_days: float) -> Values | None:
    """Weigh events by their age, so that a pair of two counts by the mean of both, [P]."""
    if items.times is None or half_life_days == NO_DECAY or not len(items.times):
        return None
    age_days = (items.times.max() - items.times) / SECONDS_PER_DAY
    values: Values = np.exp2(-age_days / half_life_days / 2).astype(np.float32)
    return values
