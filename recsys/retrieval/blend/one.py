"""A learned blend for one query at a time: what LearnedBlend.blend does, without its many tensors.

A server merges the lists of one query in a fraction of a millisecond here, where the batched form
spends its time on starting some eighty operations. Both give the same items in the same order, and
sums that differ in the last bit of float64.

Axes: S sources, F features of a source, L distinct items of all lists, N item rows, G kinds of
users, I kinds of items, C places of all lists together, k list length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.top_k import TopK
from recsys.retrieval.blend.choices import UNKNOWN_KIND, kinds_of
from recsys.retrieval.blend.fusion import ABSENT, CONSTANT
from recsys.retrieval.blend.learned import LearnedBlend
from recsys.retrieval.blend.source_features import check_lists

Rows = NDArray[np.int64]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


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


class _Listed(NamedTuple):
    """The distinct items of one query's lists, in the order of reciprocal rank fusion."""

    item_rows: Rows
    """[L]."""
    ranks: Rows
    """[L, S]."""
    leads: Floats
    """[L, S], as source_features.py defines them, 0 where absent."""
    z_scores: Floats
    """[L, S]."""


class OneQueryBlend:
    """Weights of a blend laid out for single queries over one catalogue."""

    def __init__(self, blend: LearnedBlend, item_counts: Tensor) -> None:
        """Look up each item's kind once.

        Args:
            blend: What was learned.
            item_counts: Events of each item that the sources were fitted on, [N].
        """
        counts = item_counts.double()
        self.learned, self.sources = blend, blend.sources
        self._history_bounds = blend.config.history_bounds
        self._weights: Doubles = blend.weights.double().numpy()  # [G + 1, I + 1, S, F]
        self._sizes: Doubles = blend.weights[-1, -1].abs().sum(1).double().numpy()  # [S]
        self._scales: Floats = blend.scales.numpy()
        self._item_kinds: Rows = kinds_of(counts, blend.config.item_bounds, len(counts)).numpy()
        odds = blend.config.new_item_odds
        self._log_odds: Doubles | None = None
        if odds != 1:
            self._log_odds = (counts == 0).double().numpy() * math.log(odds)

    def merge(self, lists: Mapping[str, TopK], num_events: int, k: int) -> MergedOne:
        """Merge lists [1, k_s], as ``source_lists.blended_lists`` does.

        Args:
            lists: Best first by source; rows < 1 are holes and keep their rank.
            num_events: Of the history that the sources read.
            k: Most items of the list.

        Raises:
            ValueError: A source that has no weights, or lists that cannot be merged.
        """
        if unknown := sorted(set(lists) - set(self.sources)):
            raise ValueError(
                f"sources {unknown} have no weights, {sorted(self.sources)} have; leave them out "
                "or fit the blend with them"
            )
        listed = _listed(lists)
        chosen = [self.sources.index(name) for name in lists]
        weights = self._weights_of(listed, chosen, num_events)
        present = listed.ranks != ABSENT
        reciprocal = np.where(present, (1 + CONSTANT) / (CONSTANT + listed.ranks), 0)
        parts: Doubles = listed.leads * self._scales[chosen] * weights[:, :, 0]
        parts += listed.z_scores * weights[:, :, 1]
        parts += reciprocal.astype(np.float32) * weights[:, :, 2]
        parts += present * weights[:, :, 3]
        if self._log_odds is not None:
            parts += self._odds_of(listed.item_rows)[:, None] * present / _added(present)[:, None]
        # Added smallest first: equal sets of contributions give equal sums whatever source each
        # is of.
        scores = _added(np.sort(parts, axis=1))
        best = np.argsort(-scores, kind="stable")[:k]
        return MergedOne(
            listed.item_rows[best],
            scores[best].astype(np.float32),
            listed.ranks[best],
            parts[best].astype(np.float32),
            listed.leads[best],
            listed.z_scores[best],
        )

    def _weights_of(self, listed: _Listed, chosen: list[int], num_events: int) -> Doubles:
        """Look up weights, grown where sources are missing, [L, S, F]."""
        user = int(np.searchsorted(self._history_bounds, num_events, side="right"))
        if num_events < 0:
            user = UNKNOWN_KIND if self._history_bounds else 0
        inside = listed.item_rows < len(self._item_kinds)
        kinds = np.where(
            inside, self._item_kinds[np.where(inside, listed.item_rows, 0)], UNKNOWN_KIND
        )
        lists_any = (listed.ranks != ABSENT).any(0)
        there = float(self._sizes[chosen][lists_any].sum())
        grown = float(self._sizes.sum()) / there if there > 0 else 1.0
        weights: Doubles = self._weights[user, kinds][:, chosen] * grown
        return weights

    def _odds_of(self, item_rows: Rows) -> Doubles:
        assert self._log_odds is not None
        inside = item_rows < len(self._log_odds)
        own: Doubles = self._log_odds[np.where(inside, item_rows, 0)] * inside
        return own


def _added(columns: Doubles | NDArray[np.bool_]) -> Doubles:
    """Add up columns [L, S] from the first to the last, [L]."""
    total = columns[:, 0].astype(np.float64)
    for column in range(1, columns.shape[1]):
        total = total + columns[:, column]
    return total


def _listed(lists: Mapping[str, TopK]) -> _Listed:
    """Bring equal items of all lists together; a repeat counts at its better rank."""
    tops = [(top.scores[0].numpy(), top.item_rows[0].numpy()) for top in lists.values()]
    is_item = [rows > 0 for _, rows in tops]
    if not tops or not all(
        np.isfinite(scores[own]).all() for (scores, _), own in zip(tops, is_item, strict=True)
    ):
        check_lists(lists)
    named = [rows[own] for (_, rows), own in zip(tops, is_item, strict=True)]
    items, place = np.unique(np.concatenate(named), return_inverse=True)
    shape = (len(items), len(tops))
    ranks = np.zeros(shape, np.int64)
    leads, z_scores = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    begin = 0
    for source, ((scores, _), own) in enumerate(zip(tops, is_item, strict=True)):
        rank = np.flatnonzero(own) + 1
        # Backwards, so that what is written last is the better rank.
        at = place[begin : begin + len(rank)][::-1]
        begin += len(rank)
        lead, z_score = _list_scores(scores[own].astype(np.float64))
        ranks[at, source] = rank[::-1]
        leads[at, source], z_scores[at, source] = lead[::-1], z_score[::-1]
    fused = np.where(ranks == ABSENT, 0.0, 1 / (CONSTANT + ranks))
    order = np.argsort(-_added(np.sort(fused, axis=1)), kind="stable")
    return _Listed(items[order], ranks[order], leads[order], z_scores[order])


def _list_scores(known: Doubles) -> tuple[Doubles, Doubles]:
    """Count the scores of a list from its last one: leads and z-scores."""
    if len(known) == 0:
        return known, known
    deviation = math.sqrt(float(np.square(known - known.sum() / len(known)).sum()) / len(known))
    # Rounding alone spreads equal scores: what is a billionth of their size is no spread.
    if deviation <= 1e-9 * float(np.abs(known).max()):
        return np.zeros_like(known), np.zeros_like(known)
    leads = known - known.min()
    return leads, leads / deviation
