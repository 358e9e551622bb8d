"""Weights of a search that queries of a log teach.

Items of a list are noticed less by place (position-based model, Richardson et al., 2007), so a
click is compared with the other items of its list, and how much less they are noticed is a weight
of its own. The latest third of the queries decides whether the weights are kept; a click in a later
place counts more there (Joachims et al., arXiv:1608.04468).

Axes: k items of a list, F features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from recsys.models.text_search.search import SearchCandidates, TextSearch, fit_weights

Find = Callable[[str], SearchCandidates | None]
MIN_LOGGED = 150
"""Fewer queries teach nothing."""
MAX_COUNT = 10.0
"""Most that a click in a late place counts."""
K = 10


class LoggedQuery(NamedTuple):
    """A search and an item that was chosen from its list."""

    text: str
    item_rows: tuple[int, ...]
    """The list, best first; 0 for an item that is gone."""
    chosen: int
    """Place in the list, from 0."""


class _Example(NamedTuple):
    """A query with the features of its candidates."""

    candidates: SearchCandidates
    features: NDArray[np.float32]
    """Features of the items of its list, the logarithm of the place last, [k, F + 1]."""
    chosen: int
    """Place of the chosen item among these."""
    target: int
    """Its item row."""
    slot: int
    """Its place in the list, from 0."""

    def gain(self, search: TextSearch) -> float:
        """N@10 of the chosen item."""
        rows, _ = search.order(self.candidates, self.candidates.features)
        place = int(np.flatnonzero(rows == self.target)[0])
        return float(1 / np.log2(2 + place)) if place < K else 0.0


def _example(query: LoggedQuery, find: Find) -> _Example | None:
    candidates, listed = find(query.text), np.array(query.item_rows)
    target = query.item_rows[query.chosen]
    if candidates is None or target not in candidates.item_rows:
        return None
    slots = np.flatnonzero(np.isin(listed, candidates.item_rows))
    features = candidates.features[np.searchsorted(candidates.item_rows, listed[slots])]
    noticed = -np.log1p(slots)[:, None].astype(np.float32)
    place = int(np.searchsorted(slots, query.chosen))
    return _Example(candidates, np.hstack([features, noticed]), place, target, query.chosen)


class Learned(NamedTuple):
    """Weights that a log teaches, and what they are worth."""

    weights: list[float]
    """Those of before if they are not kept."""
    document: dict[str, object]
    """Number of queries, N@10 of the later ones before and after, and whether they are kept."""


def fit_logged(search: TextSearch, find: Find, queries: Sequence[LoggedQuery]) -> Learned | None:
    """Fit the weights by the earlier queries; None if there are too few.

    Args:
        find: Finds candidates by ``search``.
    """
    examples = [one for query in queries if (one := _example(query, find)) is not None]
    if len(examples) < MIN_LOGGED:
        return None
    begin, own = 2 * len(examples) // 3, search.weights.tolist()
    features = [one.features for one in examples[:begin]]
    chosen = [one.chosen for one in examples[:begin]]
    *weights, noticed = fit_weights(features, chosen, [*own, 1.0])
    later, fitted = examples[begin:], TextSearch(search.words, weights, search.meanings)
    counts = np.array([min(MAX_COUNT, (1 + one.slot) ** noticed) for one in later])
    before, after = (np.array([one.gain(by) for one in later]) for by in (search, fitted))
    change = counts * (after - before)
    kept = bool(change.mean() > 2 * change.std() / len(later) ** 0.5)
    means = {
        name: (counts * one).sum() / counts.sum()
        for name, one in (("before", before), ("after", after))
    }
    document = {"queries": len(examples), **means, "kept": kept}
    return Learned(weights if kept else own, document)
