"""Merge the lists of one query: LearnedBlend.blend and fusion in numpy, ten times as fast.

Items are the same; sums differ in the last bit of float64, so near-ties may change places.

Axes: S sources, F features of a source, L distinct items of all lists, N item rows, G kinds of
users, I kinds of items, C places of all lists together, k list length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.top_k import OneList
from recsys.kernels.one_query.op import BlendOfOne
from recsys.models.names import POPULARITY
from recsys.retrieval.blend.choices import UNKNOWN_KIND, kinds_of
from recsys.retrieval.blend.demand import LAPSED, LENGTH_LOGS, LONGEST
from recsys.retrieval.blend.learned import LearnedBlend
from recsys.retrieval.blend.source_features import ABSENT, CONSTANT

Rows = NDArray[np.int64]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
PLACES: Rows = np.arange(1, 4_001)
"""Ranks of the longest list that is served at once; longer ones make their own."""
LOGS: list[float] = LENGTH_LOGS.tolist()
NEAR = 1e-12
"""Sums that are this near each other, relative to the largest, may be equal."""


class MergedOne(NamedTuple):
    """One merged list, best first."""

    item_rows: Rows
    """[n], n <= k."""
    scores: Floats
    """[n], never rising."""
    ranks: Rows
    """[n, S] from 1 in each source's list, `ABSENT` where it does not have the item."""
    contributions: Floats
    """[n, S] what each source added to the score."""
    leads: Floats
    """[n, S], as source_features.py defines them, 0 where absent."""
    z_scores: Floats
    """[n, S]."""

    def first(self, count: int) -> MergedOne:
        """Take the first places."""
        parts: Any = (part[:count] for part in self)
        return MergedOne(*parts)


class _Merged(NamedTuple):
    """Places of all lists, one list after the other, and the distinct items at them."""

    item_rows: Rows
    """[L], ascending."""
    source: Rows
    """[C], number of the list."""
    at: Rows
    """[C], index of the distinct item there."""
    ranks: Rows
    """[C]."""
    scores: Floats
    """[C]."""
    lengths: list[int]
    """[S], items of each list."""
    where: Rows
    """[S, L], the place of each item in each list; -1 where it does not have it."""

    def spread(self, values: Doubles) -> Doubles:
        """Arrange what each place adds, [C] -> [S, L]; 0 where a list does not have the item."""
        laid_out: Doubles = np.append(values, 0.0)[self.where]
        return laid_out


class OneQueryBlend:
    """Weights of a blend laid out for single queries over one catalogue."""

    def __init__(self, blend: LearnedBlend, item_counts: Tensor) -> None:
        """Look up each item's kind once, by its events that the sources were fitted on, [N]."""
        counts = item_counts.double()
        self.learned, self.sources = blend, blend.sources
        self._weights: Doubles = blend.weights.double().numpy()  # [I + 1, S, F]
        self._sizes: Doubles = blend.weights[-1].abs().sum(1).double().numpy()  # [S]
        self._scales: Floats = blend.scales.numpy()
        self._item_kinds: Rows | None = None
        if blend.config.item_bounds:
            self._item_kinds = kinds_of(counts, blend.config.item_bounds, len(counts)).numpy()
        self._log_odds: Doubles | None = None
        if log_odds := blend.config.log_odds_of_new:
            self._log_odds = (counts == 0).double().numpy() * log_odds
        self._demand: Doubles | None = None
        if blend.odds is not None:
            self._demand = blend.odds.double().numpy()  # [PARTS, N]
        self.compiled: BlendOfOne | None = None
        if blend.odds is None or len(blend.odds) == 3:
            self.compiled = BlendOfOne(
                *(self._weights, self._sizes, self._scales),
                *(self._item_kinds, self._log_odds, self._demand),
            )

    def merge(self, lists: Mapping[str, OneList], num_events: int, k: int) -> MergedOne:
        """Merge lists, as ``candidate_features.blended_lists`` does."""
        if unknown := sorted(set(lists) - set(self.sources)):
            raise ValueError(
                f"sources {unknown} have no weights, {sorted(self.sources)} have; leave them out "
                "or fit the blend with them"
            )
        chosen = [self.sources.index(name) for name in lists]
        if (one := self._merge_compiled(lists, chosen, num_events, k)) is not None:
            return one
        merged = _merged(lists)
        leads, z_scores = _list_scores(merged)
        weights = self._look_up_weights(merged, chosen)
        if weights.ndim == 2:
            own = weights.take(merged.source, axis=1)  # [F, C]
        else:
            own = weights[:, merged.source, merged.at]
        values = leads * self._scales[chosen].take(merged.source) * own[0]
        values += z_scores * own[1]
        values += ((1 + CONSTANT) / (CONSTANT + merged.ranks)).astype(np.float32) * own[2]
        values += own[3]
        parts = merged.spread(values)
        if self._log_odds is not None or self._demand is not None:
            listed = merged.where >= 0
            own = self._look_up_odds(merged.item_rows, num_events)
            parts += own * listed / np.maximum(listed.sum(0), 1)
        best, scores = _best(parts, merged, k)
        where = merged.where.take(best, axis=1).T  # [n, S]
        present = where >= 0
        return MergedOne(
            merged.item_rows[best],
            scores.astype(np.float32),
            np.where(present, merged.ranks[where], ABSENT),
            parts.take(best, axis=1).T.astype(np.float32),
            leads[where] * present,
            z_scores[where] * present,
        )

    def _merge_compiled(
        self, lists: Mapping[str, OneList], chosen: list[int], num_events: int, k: int
    ) -> MergedOne | None:
        """Merge by the compiled function; None if it does not run, or refuses the lists."""
        if self.compiled is None:
            return None
        events = demand_by_history(num_events)
        found = self.compiled.merge(list(lists.values()), chosen, events, k)
        return None if found is None else MergedOne(*found)

    def _look_up_weights(self, merged: _Merged, chosen: list[int]) -> Doubles:
        """Look up weights, grown where sources are missing, [F, S] or by kind of item [F, S, L]."""
        filled = tuple(one for one, n in zip(chosen, merged.lengths, strict=True) if n)
        if self._item_kinds is None:
            weights: Doubles = self._weights[0, chosen].T * self._growth(filled)
            return weights
        grown = self._growth(filled)
        inside = merged.item_rows < len(self._item_kinds)
        known = self._item_kinds[np.where(inside, merged.item_rows, 0)]
        kinds = np.where(inside, known, UNKNOWN_KIND)
        by_kind: Doubles = self._weights[kinds][:, chosen].transpose(2, 1, 0) * grown
        return by_kind

    def _growth(self, filled: tuple[int, ...]) -> float:
        there = float(sum(self._sizes[one] for one in filled))
        return float(self._sizes.sum()) / there if there > 0 else 1.0

    def _look_up_odds(self, item_rows: Rows, num_events: int) -> Doubles:
        """Look up the log odds of items themselves, [L]; 0 for appended ones."""
        total: Doubles = np.zeros(len(item_rows))
        if self._log_odds is not None:
            total += looked_up(self._log_odds, item_rows)
        if self._demand is not None:
            weights = demand_by_history(num_events)
            for weight, values in zip(weights, self._demand, strict=True):
                total += weight * looked_up(values, item_rows)
        return total


def demand_by_history(num_events: int) -> tuple[float, float, float]:
    """Return the weights of an item's demand: always, for an empty history, by its length."""
    log = LOGS[min(max(0, num_events), LONGEST)]
    return float(num_events != LAPSED), float(num_events == 0), log


def looked_up(values: Doubles, item_rows: Rows) -> Doubles:
    """Look up rows of values [N]; 0 beyond them."""
    inside = item_rows < len(values)
    own: Doubles = values[np.where(inside, item_rows, 0)] * inside
    return own


class FusedOne(NamedTuple):
    """One list merged by reciprocal rank, best first."""

    item_rows: Rows
    """[n], n <= k."""
    scores: Floats
    """[n]."""
    ranks: Rows
    """[n, S]."""


def fused_one(lists: Mapping[str, OneList], k: int, weights: Mapping[str, float]) -> FusedOne:
    """Merge the lists of one query by reciprocal rank; ties by item_row ascending."""
    merged = _merged(lists)
    own = np.array([weights[name] for name in lists])[:, None]
    ranks = np.where(merged.where < 0, ABSENT, merged.ranks[merged.where])  # [S, L]
    shares = np.where(ranks == ABSENT, 0.0, own / (CONSTANT + ranks))
    scores = _added(shares)
    best = np.argsort(-scores, kind="stable")[:k]
    return FusedOne(merged.item_rows[best], scores[best].astype(np.float32), ranks[:, best].T)


def _best(parts: Doubles, merged: _Merged, k: int) -> tuple[Rows, Doubles]:
    """Order items by the sum of parts [S, L], equal ones by reciprocal rank, then by row."""
    scores = parts.sum(0)
    order = np.argsort(-scores)[: k + 1]
    ranked = scores[order]
    if len(ranked) > 1:
        near = NEAR * max(float(parts.max()), -float(parts.min()))
        if bool((ranked[:-1] - ranked[1:] <= near).any()):
            scores = _added(parts)
            fused = merged.spread(1 / (CONSTANT + merged.ranks))
            # Distinct items ascend, and the sort is stable.
            order = np.lexsort((-_added(fused), -scores))
    best = order[:k]
    return best, scores[best]


def _added(parts: Doubles) -> Doubles:
    """Add up the parts [S, L] of each item, smallest first, [L].

    Equal sets of parts then give equal sums, in any order of sources.
    """
    in_order = np.sort(parts, axis=0)
    total: Doubles = in_order[0].copy()
    for part in in_order[1:]:
        total += part
    return total


def _merged(lists: Mapping[str, OneList]) -> _Merged:
    """Bring equal items of all lists together; a repeat counts at its better rank."""
    if not lists:
        raise ValueError("there is no source to blend; give at least one ranked list")
    rows = np.concatenate([one.item_rows for one in lists.values()])
    scores = np.concatenate([one.scores for one in lists.values()])
    lengths = [len(one.item_rows) for one in lists.values()]
    longest = max(lengths)
    places = PLACES if longest <= len(PLACES) else np.arange(1, longest + 1)
    ranks = np.concatenate([places[:length] for length in lengths])
    source = np.repeat(np.arange(len(lengths)), lengths)
    is_item = rows > 0
    if np.count_nonzero(is_item) < len(rows):
        rows, scores = rows[is_item], scores[is_item]
        ranks, source = ranks[is_item], source[is_item]
        lengths = np.bincount(source, minlength=len(lengths)).tolist()
    if np.count_nonzero(np.isfinite(scores)) < len(scores):
        place = int(np.flatnonzero(~np.isfinite(scores))[0])
        raise ValueError(
            f"source {list(lists)[source[place]]!r} scores item row {rows[place]} "
            f"{scores[place]}; scores must be finite, and holes have item row -1"
        )
    size = int(np.maximum.reduce(rows, initial=0)) + 1
    listed, column = np.zeros(size, np.bool_), np.empty(size, np.int64)
    listed[rows] = True
    items = np.flatnonzero(listed)
    column[items] = np.arange(len(items))
    at = column[rows]
    where = np.full((len(lengths), len(items)), -1)
    # Backwards, so that what is written last is the better rank.
    place_of = np.arange(len(rows) - 1, -1, -1)
    where.ravel()[(source * len(items) + at)[::-1]] = place_of
    return _Merged(items, source, at, ranks, scores, lengths, where)


def _list_scores(merged: _Merged) -> tuple[Floats, Floats]:
    """Count the scores of each list from its last one: leads and z-scores, [C] each."""
    known, lengths = merged.scores.astype(np.float64), merged.lengths
    if len(set(lengths)) == 1 and lengths[0]:
        leads, z_scores = _leads(known.reshape(len(lengths), lengths[0]))
        return leads.ravel(), z_scores.ravel()
    ends = np.cumsum(lengths).tolist()
    found = [_leads(known[None, end - n : end]) for end, n in zip(ends, lengths, strict=True) if n]
    none = np.empty(0, np.float32)
    leads = np.concatenate([none, *(one[0] for one, _ in found)])
    return leads, np.concatenate([none, *(one[0] for _, one in found)])


def _leads(known: Doubles) -> tuple[Floats, Floats]:
    """Count the scores of lists of one length, [S, n] each."""
    length = known.shape[1]
    apart = known - known.sum(1, keepdims=True) / length
    deviation = np.sqrt((apart * apart).sum(1, keepdims=True) / length)
    leads = known - known.min(1, keepdims=True)
    # Rounding alone spreads equal scores: what is a billionth of their size is no spread.
    flat = deviation <= 1e-9 * np.abs(known).max(1, keepdims=True)
    if flat.any():
        leads[flat[:, 0]] = 0
        deviation[flat] = 1
    return leads.astype(np.float32), (leads / deviation).astype(np.float32)


def one_of_their_own(
    lists: Mapping[str, OneList], num_events: int, k: int
) -> tuple[dict[str, OneList], int]:
    """Do as ``of_their_own`` for the one query of a lapsed user."""
    own = {name: one for name, one in lists.items() if name != POPULARITY.name}
    if max((len(one.item_rows) for one in own.values()), default=0) < k:
        return dict(lists), num_events
    return own, LAPSED
