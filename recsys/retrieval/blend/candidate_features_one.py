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
from recsys.retrieval.blend.fusion import ABSENT, CONSTANT
from recsys.retrieval.blend.history_features import (
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
        columns = self._of_lists(merged, tuple(lists))
        columns += self._of_history(merged.item_rows, history)
        if len(merged.item_rows) == 0:
            return CandidatesOne(merged, torch.zeros(0, len(columns)))
        return CandidatesOne(merged, torch.from_numpy(np.stack(columns, axis=1)))

    def _of_lists(self, merged: MergedOne, listed: tuple[str, ...]) -> list[Floats]:
        rows, count = merged.item_rows, len(merged.item_rows)
        nothing = np.zeros(count, np.float32)
        inside = rows < len(self._events)
        columns = [
            merged.scores - merged.scores[:1],
            _reciprocal(np.arange(1, count + 1)),
            np.where(inside, self._events[np.where(inside, rows, 0)], np.float32(0)),
        ]
        reciprocal = np.where(merged.ranks == ABSENT, np.float32(0), _reciprocal(merged.ranks))
        for place, source in enumerate(self.blend.sources):
            if source not in listed:
                columns += [nothing] * 4
                continue
            own = listed.index(source)
            columns += [
                merged.leads[:, own] * self._scales[place],
                merged.z_scores[:, own],
                reciprocal[:, own],
                merged.contributions[:, own],
            ]
        return columns

    def _of_history(self, rows: Rows, history: Tensor) -> list[Floats]:
        size = len(self._past)
        known = np.where(rows < size, rows, 0)
        latest: Rows = history[-NUM_EVENTS:].flip(0).numpy()  # [H]
        observed = (latest > 0) & (latest < size)
        latest = np.where(observed, latest, 0)
        columns = self._of_linear(rows, history)
        for table in self._tables:
            columns += _cosines(table, known, latest, observed)
        own, past = self._past[known], self._past[latest] * observed
        for count in (NUM_EVENTS, NUM_RECENT):
            columns.append(own - past[:count].sum() / _at_least_one(observed[:count]))
        columns.append(np.full(len(rows), np.log1p(np.float32(len(history))), np.float32))
        return columns

    def _of_linear(self, rows: Rows, history: Tensor) -> list[Floats]:
        places = self._ease.places_of
        read, wanted = places(history), places(torch.from_numpy(rows)).numpy()
        # Whole rows of weights are added faster than single ones are found.
        scores, recent = (
            functional.embedding_bag(part, self._ease.weights, START, mode="sum")[0].numpy()[wanted]
            for part in (read, read[-NUM_LINEAR:])
        )
        count = np.float32(max(1, len(rows)))
        above = scores - scores.sum() / count
        spread = np.sqrt(np.square(above).sum() / count)
        return [scores, above / np.maximum(spread, np.float32(1e-6)), recent]


def _at_least_one(observed: NDArray[np.bool_]) -> np.float32:
    return np.float32(max(1, int(observed.sum())))


def _reciprocal(ranks: Rows) -> Floats:
    found: Floats = ((1 + CONSTANT) / (CONSTANT + ranks)).astype(np.float32)
    return found


def _cosines(table: Tensor, known: Rows, latest: Rows, observed: NDArray[np.bool_]) -> list[Floats]:
    """Compare unit vectors [N, D] of candidates [n] and of events [H], the latest first."""
    if table.shape[1] == 0 or len(latest) == 0:
        return [np.zeros(len(known), np.float32)] * 4
    own, past = (table.index_select(0, torch.from_numpy(rows)) for rows in (known, latest))
    cosines: Floats = wide_product(own, past, None).numpy() * observed  # [n, H]
    best = cosines[:, :NUM_BEST].max(1)
    if len(latest) < NUM_BEST:
        # A missing event has similarity 0.
        best = np.maximum(best, np.float32(0))
    means = [
        cosines[:, :count].sum(1) / _at_least_one(observed[:count])
        for count in (NUM_RECENT, NUM_EVENTS)
    ]
    return [cosines[:, 0], *means, best]
