"""From a peer's scores to its lists, and what is checked of lists wherever they come from.

Axes: Q queries, N item rows, k list length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.peers.folder import KEPT, Flags, Queries, Rows

Scores = NDArray[np.float32]
QUERIES_AT_A_TIME = 500


class Fitted(Protocol):
    """A peer that is fitted on what was known before a step."""

    def lists(self, queries: Queries) -> Rows:
        """List candidates that are not in the history, best first, 0 behind the last, [Q, k]."""
        ...


class Scored:
    """A peer that scores every item for a block of queries."""

    def __init__(self, score: Callable[[Queries, slice], Scores]) -> None:
        """Take the function from queries and a block of them to scores, [block, N]; -inf for none.

        The function's result is overwritten.
        """
        self._score = score

    def lists(self, queries: Queries) -> Rows:
        found = np.zeros((len(queries), KEPT), np.int64)
        for begin in range(0, len(queries), QUERIES_AT_A_TIME):
            block = slice(begin, min(begin + QUERIES_AT_A_TIME, len(queries)))
            scores = self._score(queries, block)
            scores[:, ~queries.candidates] = -np.inf
            taken = queries.taken[block]
            scores[
                np.repeat(np.arange(len(scores)), np.diff(taken.indptr)), taken.indices
            ] = -np.inf
            found[block] = best(scores)
        return found


def best(scores: Scores, k: int = KEPT) -> Rows:
    """List the k best items of finite score, ties by item row; 0 behind the last, [Q, k]."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    rows = np.where(np.isfinite(np.take_along_axis(scores, order, axis=1)), order, 0)
    return np.pad(rows, ((0, 0), (0, k - rows.shape[1])))


def filled(lists: Rows, queries: Queries, popular: Rows) -> Rows:
    """Fill short lists with the most popular candidates that they and the history do not hold.

    Args:
        lists: 0 where short, [Q, k].
        queries: The lists' queries.
        popular: Item rows, most popular first.
    """
    popular = popular[queries.candidates[popular]]
    full = lists.copy()
    for query in np.flatnonzero((lists == 0).any(1)):
        begin, end = queries.history_offsets[query : query + 2]
        own = lists[query][lists[query] > 0]
        held = np.concatenate([own, queries.history_rows[begin:end]])
        # No more than the list and the history can stand before the first that is left.
        some = popular[: len(held) + lists.shape[1]]
        more = some[~np.isin(some, held)]
        row = np.concatenate([own, more])[: lists.shape[1]]
        full[query] = 0
        full[query, : len(row)] = row
    return full


def check(lists: Rows, queries: Queries) -> None:
    """Hold lists to the rules.

    Raises:
        ValueError: They are too few, or hold an item twice, a seen one or one that is no candidate.
    """
    if len(lists) != len(queries):
        raise ValueError(f"there are {len(lists)} lists for {len(queries)} queries")
    allowed: Flags = np.append(queries.candidates[1:], True)  # row 0 wraps to the end
    if not allowed[lists - 1].all():
        wrong = lists[~allowed[lists - 1]][0]
        raise ValueError(f"item row {wrong} is no candidate: it had no event before the step")
    width = len(queries.candidates)
    query, place = np.nonzero(lists)
    pairs = query * width + lists[query, place]
    if len(np.unique(pairs)) < len(pairs):
        raise ValueError("a list holds an item twice")
    seen = queries.history_queries * width + queries.history_rows
    if np.isin(pairs, seen).any():
        wrong = pairs[np.isin(pairs, seen)][0] % width
        raise ValueError(f"a list holds item row {wrong}, which is in the query's history")


def ndcg(lists: Rows, queries: Queries, k: int = 10) -> float:
    """Average NDCG@k with binary gains over the queries; the ideal list has all targets first."""
    width = len(queries.candidates)
    num_targets = np.diff(queries.target_offsets)
    targets = np.repeat(np.arange(len(queries)), num_targets) * width + queries.targets
    pairs = np.arange(len(lists))[:, None] * width + lists[:, :k]
    discounts = 1 / np.log2(np.arange(2, k + 2))
    gains = (np.isin(pairs, targets) & (lists[:, :k] > 0)) @ discounts[: lists[:, :k].shape[1]]
    ideal = np.cumsum(discounts)[np.minimum(num_targets, k) - 1]
    return float((gains / ideal).mean())
