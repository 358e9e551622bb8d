"""Fit what a text search needs: a text tower, words, and the weights of what is known of a find.

Queries are made of items' own texts. A part of the items is kept from the tower, and validation
events of these teach the weights, so that they are of queries that the tower has not seen; each
half of those queries is also ranked by weights of the other, to say what the search is worth.

Axes: Q queries, K candidates of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipelines.searching.judged import Judged, Rows, personal_orders
from pipelines.searching.texts import scale_counts, title_index
from recsys.fitting.blend import ProfileBlend
from recsys.fitting.queries import EvaluationQueries
from recsys.models.configs import TextTowerConfig
from recsys.models.text_search.scorers import WordIndex, train_tower
from recsys.models.text_search.search import (
    FEATURES,
    START,
    SearchCandidates,
    TextSearch,
    fit_weights,
    weighed,
)
from recsys.models.text_search.tokens import ItemText, split

KEPT = 0.2
"""Share of the items that the tower makes no queries of."""
MAX_QUERIES = 2_000
MIN_QUERIES = 50
"""Below which the weights stay where they start."""
CUT = 10
"""Places of a list that are judged."""
WORDS, TITLE, SPELLING, POPULARITY, PERSONAL = range(len(FEATURES))
ALONE = {
    "words": (1.0, 0.0, 0.0, 1e-3, 0.0),
    "spelling": (0.0, 0.0, 1.0, 0.0, 0.0),
}
"""Ways to rank that are beaten or not: BM25 with ties by popularity, and the text tower alone."""


@dataclass(frozen=True)
class FittedSearch:
    """A search, and what it is worth on validation."""

    search: TextSearch
    metrics: dict[str, Any]


def kept_items(texts: Sequence[ItemText], seed: int) -> set[int]:
    """Draw the item rows that the tower makes no queries of."""
    drawn = np.random.default_rng([seed, len(texts)]).random(len(texts))
    return {text.item_row for text, one in zip(texts, drawn, strict=True) if one < KEPT}


def fit_text_search(
    texts: Sequence[ItemText],
    config: TextTowerConfig,
    queries: EvaluationQueries,
    sources: Mapping[str, Any],
    blend: ProfileBlend,
    item_counts: torch.Tensor,
    seed: int,
) -> FittedSearch | None:
    """Fit a search; None where no item has a text.

    Args:
        item_counts: Events of each item on train, [N].
    """
    documents = [[], *(split(text.text) for text in texts)]
    if sum(map(bool, documents)) < 2:
        return None
    kept = kept_items(texts, seed)
    tower = train_tower([text for text in texts if text.item_row not in kept], config, seed)
    popularity = scale_counts(item_counts.numpy())
    search = TextSearch(tower, tower.encode(documents), WordIndex.of(documents), START)
    wanted = {text.item_row: text for text in texts if text.item_row in kept}
    judged = Judged.of(queries.sample(int(MAX_QUERIES / KEPT), seed), wanted, seed)
    if len(judged) < MIN_QUERIES:
        return FittedSearch(search, {"num_queries": len(judged)})
    found = judged.found(search, title_index(texts, popularity), popularity)
    orders = personal_orders(judged, found, sources, blend, item_counts)
    features = [one.personal(order) for one, order in zip(found, orders, strict=True)]
    weights = served_weights(judged, found, features)
    search = TextSearch(tower, search.item_vectors, search.words, weights)
    typed = judged.as_typed(search, popularity)
    return FittedSearch(search, measured(judged, found, features, typed))


def served_weights(
    judged: Judged,
    found: Sequence[SearchCandidates],
    features: Sequence[NDArray[np.float32]],
    rows: Rows | None = None,
) -> list[float]:
    """Learn weights from those queries whose item was found, all or some of them."""
    chosen, places = [], []
    for row in range(len(judged)) if rows is None else rows.tolist():
        at = np.flatnonzero(found[row].item_rows == judged.targets[row])
        if len(at):
            chosen.append(features[row])
            places.append(int(at[0]))
    return fit_weights(chosen, places)


def gains(
    judged: Judged,
    found: Sequence[SearchCandidates],
    features: Sequence[NDArray[np.float32]],
    weights: Sequence[float],
) -> NDArray[np.float64]:
    """NDCG@10 of each query, of one wanted item, [Q]; 0 where it was not found."""
    values = np.zeros(len(judged))
    for row, (target, one) in enumerate(zip(judged.targets, found, strict=True)):
        scores = weighed(features[row], weights)
        order = one.item_rows[np.argsort(-scores, kind="stable")][:CUT]
        at = np.flatnonzero(order == target)
        values[row] = 1 / np.log2(2 + at[0]) if len(at) else 0.0
    return values


def measured(
    judged: Judged,
    found: Sequence[SearchCandidates],
    features: Sequence[NDArray[np.float32]],
    typed: Sequence[SearchCandidates],
) -> dict[str, Any]:
    """Return on validation what words, the tower, both and the user's own list are worth."""
    half = np.arange(len(judged)) % 2
    unknown = [np.array(one) for one in features]
    for one in unknown:
        one[:, PERSONAL] = 0
    alone = [one.features for one in typed]
    by_way = {name: gains(judged, typed, alone, weights) for name, weights in ALONE.items()}
    for name, shown in (("hybrid", unknown), ("personal", features)):
        values = np.zeros(len(judged))
        for own in (0, 1):
            weights = served_weights(judged, found, shown, np.flatnonzero(half != own))
            values[half == own] = gains(judged, found, shown, weights)[half == own]
        by_way[name] = values
    kinds = sorted({one.kind for one in judged.made})
    return {
        "num_queries": len(judged),
        f"ndcg@{CUT}": {name: float(values.mean()) for name, values in by_way.items()},
        "by_kind": {
            kind: {
                name: float(values[[one.kind == kind for one in judged.made]].mean())
                for name, values in by_way.items()
            }
            for kind in kinds
        },
    }
