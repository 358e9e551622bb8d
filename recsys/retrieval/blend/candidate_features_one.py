"""Candidates of one query with their features: ``candidate_features.py`` for a request, in numpy.

Takes a third of the time of the batched form, which is spent on launching some three hundred
operations and on what all requests share. Both give the same items in the same order, and features
that are equal up to rounding.

Axes: n candidates, S sources of the blend, F features of a candidate, N item rows, H latest events,
D width of a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from recsys.data.top_k import OneList
from recsys.layers.wide_linear import wide_product
from recsys.retrieval.blend.candidate_features import OF_BLEND, OF_SOURCE, feature_names
from recsys.retrieval.blend.fusion import ABSENT, CONSTANT
from recsys.retrieval.blend.history_features import (
    HISTORY_FEATURES,
    NUM_BEST,
    NUM_EVENTS,
    NUM_LINEAR,
    NUM_RECENT,
    HistoryFeatures,
    log_events,
)
from recsys.retrieval.blend.learned import LearnedBlend
from recsys.retrieval.blend.one import MergedOne, OneQueryBlend

START = torch.zeros(1, dtype=torch.int64)
Rows = NDArray[np.int64]
Floats = NDArray[np.float32]


class CandidatesOne(NamedTuple):
    """One merged list and its features."""

    merged: MergedOne
    features: Tensor
    """[n, F] float32, as ``candidate_features.feature_names`` names them."""


class OneQueryFeatures:
    """Builds the candidates of single queries over one catalogue."""

    def __init__(
        self, blend: LearnedBlend, item_counts: Tensor, history_features: HistoryFeatures
    ) -> None:
        """Prepare what requests share.

        Args:
            item_counts: Events of each item that the sources were fitted on, [N].
        """
        self.blend = OneQueryBlend(blend, item_counts)
        self._num_features = len(feature_names(blend.sources))
        self._scales: Floats = blend.scales.numpy()
        self._events: Floats = item_counts.float().log1p().numpy()  # [N]
        self._tables = history_features.tables
        self._ease = history_features.ease
        self._past: Floats = log_events(item_counts, history_features.num_items).numpy()

    @torch.no_grad()
    def candidates(self, lists: Mapping[str, OneList], history: Tensor, k: int) -> CandidatesOne:
        """Merge lists and compute the features of the first k places.

        Args:
            lists: Best first by source; rows < 1 are holes and keep their rank.
            history: Item rows of what the sources read, [E], oldest first.
            k: Most candidates.

        Raises:
            ValueError: As ``OneQueryBlend.merge``.
        """
        merged = self.blend.merge(lists, len(history), k)
        count = len(merged.item_rows)
        columns: Floats = np.zeros((self._num_features, count), np.float32)
        if count:
            self._of_lists(merged, [self.blend.sources.index(name) for name in lists], columns)
            self._of_history(merged.item_rows, history, columns[-len(HISTORY_FEATURES) :])
        return CandidatesOne(merged, torch.from_numpy(columns).T.contiguous())

    def _of_lists(self, merged: MergedOne, listed: list[int], columns: Floats) -> None:
        rows = merged.item_rows
        columns[0] = merged.scores - merged.scores[:1]
        columns[1] = _reciprocal(np.arange(1, len(rows) + 1))
        if rows.max() < len(self._events):
            columns[2] = self._events[rows]
        else:
            inside = rows < len(self._events)
            columns[2] = np.where(inside, self._events[np.where(inside, rows, 0)], 0)
        ranks = merged.ranks.T  # [S, n]
        of_sources = columns[len(OF_BLEND) : -len(HISTORY_FEATURES)]
        of_source = of_sources.reshape(-1, len(OF_SOURCE), len(rows))
        of_source[listed, 0] = merged.leads.T * self._scales[listed, None]
        of_source[listed, 1] = merged.z_scores.T
        of_source[listed, 2] = np.where(ranks == ABSENT, np.float32(0), _reciprocal(ranks))
        of_source[listed, 3] = merged.contributions.T

    def _of_history(self, rows: Rows, history: Tensor, columns: Floats) -> None:
        size = len(self._past)
        known = rows if rows.max() < size else np.where(rows < size, rows, 0)
        latest: Rows = history[-NUM_EVENTS:].numpy()[::-1]  # [H]
        observed = (latest > 0) & (latest < size)
        all_observed = bool(observed.all())
        latest = latest.copy() if all_observed else np.where(observed, latest, 0)
        self._of_linear(rows, history, columns[:3])
        counts = [_at_least_one(observed[:number]) for number in (NUM_EVENTS, NUM_RECENT)]
        own_rows, past_rows = torch.from_numpy(known), torch.from_numpy(latest)
        for place, table in enumerate(self._tables):
            if table.shape[1] and len(latest):
                past = table.index_select(0, past_rows)
                if not all_observed:
                    past *= torch.from_numpy(observed)[:, None]
                own = table.index_select(0, own_rows)
                _cosines(own, past, counts, columns[3 + 4 * place : 7 + 4 * place])
        own_events, past_events = self._past[known], self._past[latest] * observed
        for row, number, count in zip((-3, -2), (NUM_EVENTS, NUM_RECENT), counts, strict=True):
            columns[row] = own_events - past_events[:number].sum() / count
        columns[-1] = np.log1p(np.float32(len(history)))

    def _of_linear(self, rows: Rows, history: Tensor, columns: Floats) -> None:
        places = self._ease.places_of
        read, wanted = places(history), places(torch.from_numpy(rows)).numpy()
        # Whole rows of weights are added faster than single ones are found.
        scores, recent = (
            functional.embedding_bag(part, self._ease.weights, START, mode="sum")[0].numpy()[wanted]
            for part in (read, read[-NUM_LINEAR:])
        )
        count = np.float32(len(rows))
        above = scores - scores.sum() / count
        spread = np.sqrt(np.square(above).sum() / count)
        columns[0], columns[2] = scores, recent
        columns[1] = above / np.maximum(spread, np.float32(1e-6))


def _at_least_one(observed: NDArray[np.bool_]) -> int:
    return max(1, int(observed.sum()))


def _reciprocal(ranks: Rows) -> Floats:
    found: Floats = ((1 + CONSTANT) / (CONSTANT + ranks)).astype(np.float32)
    return found


def _cosines(own: Tensor, past: Tensor, counts: list[int], columns: Floats) -> None:
    """Compare unit vectors of candidates [n, D] and of events [H, D], the latest first."""
    # Means are products with a mean, so the events behind the latest are added before they meet
    # the candidates.
    every, few = past.sum(0) / counts[0], past[:NUM_RECENT].sum(0) / counts[1]
    near = torch.cat([past[:NUM_BEST], few[None], every[None]])
    cosines: Floats = wide_product(near, own, None).numpy()  # [H + 2, n]
    columns[0] = cosines[0]
    columns[1:3] = cosines[-2:]
    columns[3] = cosines[:-2].max(0)
    if len(past) < NUM_BEST:
        # A missing event has similarity 0.
        np.maximum(columns[3], np.float32(0), out=columns[3])
