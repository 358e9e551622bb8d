"""Candidates of one query with their features: ``candidate_features.py`` for a request.

Features of the history are computed by one compiled function, or without it by the batched form,
whose three hundred operations take longer. Both give the same items, and features that are equal
up to rounding; items whose merged scores differ by no more may change places.

Axes: n candidates, S sources of the blend, F features of a candidate, N item rows, E events, D
width of a table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.batch import one_example
from recsys.data.top_k import OneList
from recsys.kernels.one_query.ranker_op import FeaturesOfOne
from recsys.retrieval.blend.candidate_features import OF_BLEND, OF_SOURCE, feature_names
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
from recsys.retrieval.blend.source_features import ABSENT, CONSTANT

PAIRS_UP_TO, PAIRS_FROM = 4096, 256
"""Items, and width of their vectors, from which on the cosines of every two are kept, in at most
64 MiB: fifty times two hundred of them are looked up where two hundred vectors are copied."""
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
        ease = history_features.ease
        self._weights = ease.weights
        # The last place is of rows behind the catalogue that the weights are of.
        self._places: Rows = np.append(ease.places.numpy(), len(ease.item_rows))
        self._past: Floats = log_events(item_counts, history_features.num_items).numpy()
        self._history, self._counts = history_features, item_counts
        self.compiled = self._compile(history_features.tables)

    def _compile(self, tables: Sequence[Tensor]) -> FeaturesOfOne:
        """Arrange what requests share for the compiled form; as of ``Features`` in ranker.c."""
        few = len(tables[0]) <= PAIRS_UP_TO
        kept = [
            (table @ table.T, 0)
            if few and table.shape[1] >= PAIRS_FROM
            else (table, table.shape[1])
            for table in tables
        ]
        return FeaturesOfOne(
            kept,
            num_features=self._num_features,
            num_events=len(self._events),
            num_items=len(self._past),
            num_places=len(self._places),
            stride=self._weights.shape[1],
            num_tables=len(tables),
            latest=NUM_EVENTS,
            recent=NUM_RECENT,
            best=NUM_BEST,
            linear=NUM_LINEAR,
            scales=np.ascontiguousarray(self._scales),
            events=self._events,
            past=self._past,
            weights=self._weights.contiguous(),
            places=self._places,
        )

    def candidates(
        self, lists: Mapping[str, OneList], history: Tensor, num_candidates: int, length: int = 0
    ) -> CandidatesOne:
        """Merge lists and compute the features of the first places.

        Args:
            history: Item rows of what the sources read, [E], oldest first.

        Raises:
            ValueError: A feature is not finite.
        """
        merged = self.blend.merge(lists, len(history), max(num_candidates, length))
        first = merged.first(num_candidates)
        count, chosen = len(first.item_rows), [self.blend.sources.index(name) for name in lists]
        if count:
            compiled = self.compiled.features(first, chosen, history)
            if compiled is not None:
                return CandidatesOne(merged, torch.from_numpy(compiled).T)
        columns: Floats = np.zeros((self._num_features, count), np.float32)
        if count:
            self._of_lists(first, chosen, columns)
            rows = torch.from_numpy(first.item_rows)[None]
            found = self._history.features(one_example(history), rows, self._counts)
            columns[-len(HISTORY_FEATURES) :] = found[0].T
        # A sum is finite where all it adds up is.
        if not math.isfinite(columns.sum()):
            raise ValueError("a feature of a candidate is not finite")
        return CandidatesOne(merged, torch.from_numpy(columns).T)

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


def _reciprocal(ranks: Rows) -> Floats:
    found: Floats = ((1 + CONSTANT) / (CONSTANT + ranks)).astype(np.float32)
    return found
