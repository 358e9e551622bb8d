"""Which attributes help: each is measured by itself, and kept only if retrieval gains.

Events that are neither validation nor test are cut into queries: a user's last items there, each
searched by the mean vector of the items before it, as content similarity does for items that no
training has seen. An attribute's gain is NDCG@k with it after the items' text minus NDCG@k
without, query by query.

An attribute must gain over the text alone and over the same words exchanged among items.

A text is shared by all queries of its item, so queries of an item, like those of a user, are not
independent: the interval's variance is that over users plus that over items (an upper bound of the
two-way clustered one of Cameron, Gelbach and Miller 2011). Its level is divided by the number of
attributes (Bonferroni).

Axes: N items, D width, Q queries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recsys.content.encoder import Vectors, normalized

Rows = NDArray[np.int64]
K = 100
LEVEL = 0.05
MIN_GROUPS = 30
"""Users, and items looked for, below which nothing is decided for an attribute."""
MAX_TARGETS = 5
MAX_HISTORY = 50
MAX_QUERIES = 20_000
QUERIES_AT_ONCE = 512


class Queries(NamedTuple):
    """Targets, histories and users of the queries."""

    users: Rows  # [Q]
    targets: Rows  # [Q]
    histories: list[Rows]  # Q of [1..MAX_HISTORY]


class GateDecision(NamedTuple):
    """Measurement of one attribute."""

    attribute: str
    kept: bool
    gain: float
    """Gain in NDCG@100 of the attribute in the text."""
    low: float
    high: float
    num_queries: int
    num_items: int
    """Items that have the attribute."""
    reason: str

    def document(self) -> dict[str, Any]:
        """Write as JSON."""
        return self._asdict()


def cut_queries(sequences: Sequence[Rows], seed: int) -> Queries:
    """Look for each user's last items by those before; a user of one item has no query."""
    order = np.random.default_rng(seed).permutation(len(sequences))
    users: list[int] = []
    targets: list[int] = []
    histories: list[Rows] = []
    for user in order.tolist():
        items = np.asarray(sequences[user], np.int64)
        for place in range(max(1, len(items) - MAX_TARGETS), len(items)):
            before = np.unique(items[max(0, place - MAX_HISTORY) : place])
            if items[place] not in before:
                users.append(user)
                targets.append(int(items[place]))
                histories.append(before)
        if len(users) >= MAX_QUERIES:
            break
    return Queries(np.array(users, np.int64), np.array(targets, np.int64), histories)


def discounted(vectors: Vectors, queries: Queries) -> NDArray[np.float64]:
    """Return NDCG@k of every query, [Q]; ties count against the target.

    Args:
        vectors: Of all items, [N, D]; rows of zeros are similar to nothing.
    """
    found = np.zeros(len(queries.targets))
    for begin in range(0, len(found), QUERIES_AT_ONCE):
        histories = queries.histories[begin : begin + QUERIES_AT_ONCE]
        targets = queries.targets[begin : begin + QUERIES_AT_ONCE]
        profiles = normalized(np.stack([vectors[rows].mean(0) for rows in histories]))
        scores = profiles @ vectors.T  # [B, N]
        for row, history in enumerate(histories):
            scores[row, history] = -np.inf
        own = scores[np.arange(len(targets)), targets]
        places = (scores >= own[:, None]).sum(1)  # 1 is the best
        gains = np.where(places <= K, 1 / np.log2(places + 1), 0.0)
        found[begin : begin + len(targets)] = gains
    return found


def clustered_variance(differences: NDArray[np.float64], groups: Rows) -> float:
    """Return the variance of the mean of values [Q] whose groups [Q] are independent."""
    _, index = np.unique(groups, return_inverse=True)
    centred = np.bincount(index, weights=differences - differences.mean())
    num_groups = len(centred)
    correction = num_groups / max(1, num_groups - 1)
    return float(correction * (centred**2).sum() / len(differences) ** 2)


def decide(
    attribute: str, differences: NDArray[np.float64], queries: Queries, num_items: int, tests: int
) -> GateDecision:
    """Keep an attribute whose interval is above zero.

    Args:
        differences: NDCG with the attribute minus NDCG without, [Q].
    """
    num = len(differences)
    if num == 0:
        return GateDecision(attribute, False, 0.0, 0.0, 0.0, 0, num_items, "no event to measure by")
    groups = min(len(np.unique(queries.users)), len(np.unique(queries.targets)))
    if num_items == 0:
        return GateDecision(attribute, False, 0.0, 0.0, 0.0, num, 0, "no item has it")
    if groups < MIN_GROUPS:
        reason = f"{groups} users or items to measure by, at least {MIN_GROUPS} are needed"
        return GateDecision(attribute, False, 0.0, 0.0, 0.0, num, num_items, reason)
    gain = float(differences.mean())
    variance = clustered_variance(differences, queries.users)
    variance += clustered_variance(differences, queries.targets)
    margin = NormalDist().inv_cdf(1 - LEVEL / 2 / tests) * variance**0.5
    low, high = gain - margin, gain + margin
    reason = "lists gain" if low > 0 else "lists lose" if high < 0 else "no gain was shown"
    return GateDecision(attribute, low > 0, gain, low, high, num, num_items, reason)


def choose_attributes(
    names: Sequence[str],
    texts_with: Callable[[str | None, Sequence[int]], list[str]],
    encode: Callable[[list[str]], Vectors],
    queries: Queries,
    *,
    num_items: int,
    seed: int,
) -> list[GateDecision]:
    """Measure each attribute by itself, in the order given.

    Args:
        encode: Turns texts into unit vectors, [n, D].
    """
    own = list(range(num_items))
    drawn = np.random.default_rng(seed).permutation(num_items).tolist()
    plain = texts_with(None, own)
    base = discounted(encode(plain), queries)
    decisions = []
    for name in names:
        texts = texts_with(name, own)
        num = sum(one != other for one, other in zip(plain, texts, strict=True))
        gained = discounted(encode(texts), queries) if num else base
        found = decide(name, gained - base, queries, num, len(names))
        if found.kept:
            # More words alone move cosines; a value must also beat another item's.
            exchanged = discounted(encode(texts_with(name, drawn)), queries)
            if not decide(name, gained - exchanged, queries, num, len(names)).kept:
                reason = "other items' values gain as much"
                found = found._replace(kept=False, reason=reason)
        decisions.append(found)
    return decisions
