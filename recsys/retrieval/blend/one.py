"""Merge the lists of one query: LearnedBlend.blend in a compiled call, and fusion in numpy.

Items are the same; sums differ in the last bit of float64, so near-ties may change places.

Axes: S sources, F features of a source, L distinct items of all lists, N item rows, I kinds of
items, C places of all lists together, k list length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.top_k import OneList
from recsys.kernels.one_query.op import BlendOfOne
from recsys.models.names import POPULARITY
from recsys.retrieval.blend.choices import kinds_of
from recsys.retrieval.blend.demand import LENGTH_LOGS, LONGEST, OWN, VISIT_SECONDS
from recsys.retrieval.blend.learned import LearnedBlend
from recsys.retrieval.blend.source_features import ABSENT, CONSTANT, Blended

Rows = NDArray[np.int64]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
PLACES: Rows = np.arange(1, 4_001)
"""Ranks of the longest list that is served at once; longer ones make their own."""
LOGS: list[float] = LENGTH_LOGS.tolist()


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

    @classmethod
    def of(cls, blended: Blended) -> MergedOne:
        """Take the only list of a batch."""
        there = blended.item_rows[0] > 0
        assert blended.contributions is not None
        parts = (blended.item_rows, blended.scores, blended.source_ranks, blended.contributions)
        return cls(*(part[0, there].numpy() for part in parts))


class _Merged(NamedTuple):
    """Places of all lists, one list after the other, and the distinct items at them."""

    item_rows: Rows
    """[L], ascending."""
    ranks: Rows
    """[C]."""
    where: Rows
    """[S, L], the place of each item in each list; -1 where it does not have it."""


class OneQueryBlend:
    """Weights of a blend laid out for single queries over one catalogue."""

    def __init__(self, blend: LearnedBlend, item_counts: Tensor) -> None:
        """Look up each item's kind once, by its events that the sources were fitted on, [N]."""
        self.learned, self.sources = blend, blend.sources
        self._counts, log_odds = item_counts.double(), blend.config.log_odds_of_new
        self._log_odds = (self._counts == 0).double() * log_odds if log_odds else None
        self.compiled: BlendOfOne | None = None
        self.compiled_own: BlendOfOne | None = None
        if blend.odds is not None and len(blend.odds) != 3:
            return
        bounds, kinds = blend.config.item_bounds, None
        if bounds or blend.repeats_source >= 0:
            kinds = kinds_of(self._counts, bounds, len(self._counts)).numpy()
        self.compiled = BlendOfOne(
            blend.weights.double().numpy(),  # [I + 1, S, F]
            blend.scales.numpy(),
            kinds,
            new_odds := None if self._log_odds is None else self._log_odds.numpy(),
            None if blend.odds is None else blend.odds.double().numpy(),  # [PARTS, N]
            blend.repeats_source,
        )
        if (own := blend.own) is not None:
            weights, scales = own[None, :, :-1].double().numpy(), own[:, -1].contiguous().numpy()
            self.compiled_own = BlendOfOne(weights, scales, None, new_odds, None)

    def read(
        self,
        lists: Mapping[str, OneList],
        history: Rows,
        times: Rows | None,
        moment: int | None,
        k: int,
    ) -> tuple[dict[str, OneList], int]:
        """Take the lists that count at a moment, in unix seconds, and the history's length.

        During a visit and after a long absence, these are as ``of_their_own`` gives them.
        """
        if times is None or not len(history):
            return dict(lists), len(history)
        visits = moment is not None and times[-1] > moment - VISIT_SECONDS
        if times[-1] < self.learned.lapsed_before or (visits and self.learned.own is not None):
            return one_of_their_own(lists, len(history), k)
        return dict(lists), len(history)

    def merge(self, lists: Mapping[str, OneList], num_events: int, k: int) -> MergedOne:
        """Merge lists, as ``candidate_features.blended_lists`` does."""
        own = self.compiled_own if num_events == OWN else None
        compiled = own or self.compiled
        if compiled is not None and set(lists) <= set(self.sources):
            chosen = [self.sources.index(name) for name in lists]
            events = demand_by_history(num_events)
            found = compiled.merge(list(lists.values()), chosen, events, k)
            if found is not None:
                return MergedOne(*found)
        blended = self.learned.blend(
            {name: one.batch() for name, one in lists.items()},
            k,
            history_lengths=torch.tensor([num_events]),
            item_values=self._counts,
            log_odds=self._log_odds,
        )
        return MergedOne.of(blended)


def demand_by_history(num_events: int) -> tuple[float, float, float]:
    """Return the weights of an item's demand: always, for an empty history, by its length."""
    log = LOGS[min(max(0, num_events), LONGEST)]
    return float(num_events != OWN), float(num_events == 0), log


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
    rows = np.concatenate([one.item_rows for one in lists.values()])
    lengths = [len(one.item_rows) for one in lists.values()]
    longest = max(lengths)
    places = PLACES if longest <= len(PLACES) else np.arange(1, longest + 1)
    ranks = np.concatenate([places[:length] for length in lengths])
    source = np.repeat(np.arange(len(lengths)), lengths)
    is_item = rows > 0
    rows, ranks, source = rows[is_item], ranks[is_item], source[is_item]
    size = int(np.maximum.reduce(rows, initial=0)) + 1
    listed, column = np.zeros(size, np.bool_), np.empty(size, np.int64)
    listed[rows] = True
    items = np.flatnonzero(listed)
    column[items] = np.arange(len(items))
    at = column[rows]
    where = np.full((len(lengths), len(items)), -1)
    # Backwards, so that the last write is the better rank.
    place_of = np.arange(len(rows) - 1, -1, -1)
    where.ravel()[(source * len(items) + at)[::-1]] = place_of
    return _Merged(items, ranks, where)


def one_of_their_own(
    lists: Mapping[str, OneList], num_events: int, k: int
) -> tuple[dict[str, OneList], int]:
    """Do as ``of_their_own`` for one query that the user's own history ranks."""
    own = {name: one for name, one in lists.items() if name != POPULARITY.name}
    if max((len(one.item_rows) for one in own.values()), default=0) < k:
        return dict(lists), num_events
    return own, OWN
