"""Candidates of one query with their features: ``candidate_features.py`` for a request, in numpy.

Takes a third of the time of the batched form, which is spent on launching some three hundred
operations and on what all requests share. Both give the same items, and features that are equal up
to rounding; items whose merged scores differ by no more may change places.

Axes: n candidates, S sources of the blend, F features of a candidate, N item rows, H latest events,
D width of a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

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
        self._num_tables = len(history_features.tables)
        self._pairs: list[tuple[int, Floats]] = []
        """Wide tables of few items: the cosines of every two."""
        self._vectors: list[tuple[Tensor, list[tuple[int, slice]]]] = []
        """The other tables, those of few items side by side, with the columns of each."""
        self._keep_tables(history_features.tables)
        ease = history_features.ease
        self._weights = ease.weights
        # The last place is of rows behind the catalogue that the weights are of.
        self._places: Rows = np.append(ease.places.numpy(), len(ease.item_rows))
        self._taken: dict[int, Tensor] = {}
        self._past: Floats = log_events(item_counts, history_features.num_items).numpy()
        self._compiled = self._compile(history_features.tables)

    def _keep_tables(self, tables: Sequence[Tensor]) -> None:
        few = len(tables[0]) <= PAIRS_UP_TO
        narrow, width = [], 0
        parts: list[tuple[int, slice]] = []
        for number, table in enumerate(tables):
            columns = table.shape[1]
            if few and columns >= PAIRS_FROM:
                self._pairs.append((number, (table @ table.T).numpy()))
            elif few and columns:
                narrow.append(table)
                parts.append((number, slice(width, width + columns)))
                width += columns
            elif columns:
                self._vectors.append((table, [(number, slice(0, columns))]))
        if narrow:
            self._vectors.append((torch.cat(narrow, dim=1), parts))

    def _compile(self, tables: Sequence[Tensor]) -> FeaturesOfOne:
        """Arrange what requests share for the compiled form; as of ``Features`` in ranker.c."""
        pairs = {number: torch.from_numpy(one) for number, one in self._pairs}
        kept = [
            (pairs.get(n, table), table.shape[1] * (n not in pairs))
            for n, table in enumerate(tables)
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
        """
        merged = self.blend.merge(lists, len(history), max(num_candidates, length))
        first = merged.first(num_candidates)
        count, chosen = len(first.item_rows), [self.blend.sources.index(name) for name in lists]
        if count:
            found = self._compiled.features(first, chosen, history)
            if found is not None:
                return CandidatesOne(merged, torch.from_numpy(found).T)
        columns: Floats = np.zeros((self._num_features, count), np.float32)
        if count:
            self._of_lists(first, chosen, columns)
            self._of_history(first.item_rows, history, columns[-len(HISTORY_FEATURES) :])
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

    def _of_history(self, rows: Rows, history: Tensor, columns: Floats) -> None:
        size = len(self._past)
        known = rows if rows.max() < size else np.where(rows < size, rows, 0)
        latest: Rows = history[-NUM_EVENTS:].numpy()[::-1]  # [H]
        observed = (latest > 0) & (latest < size)
        latest = np.where(observed, latest, 0)
        self._of_linear(rows, history.numpy(), columns[:3])
        if len(latest):
            self._of_tables(known, latest, observed, columns[3:-3])
        own_events, past_events = self._past[known], self._past[latest] * observed
        for row, number in ((-3, NUM_EVENTS), (-2, NUM_RECENT)):
            mean = past_events[:number].sum() / _at_least_one(observed[:number])
            columns[row] = own_events - mean
        columns[-1] = np.log1p(np.float32(len(history)))

    def _of_tables(
        self, known: Rows, latest: Rows, observed: NDArray[np.bool_], columns: Floats
    ) -> None:
        """Compare unit vectors [N, D] of candidates [n] and of events [H], the latest first."""
        if observed.all():
            taken = self._taken.get(len(latest))
            if taken is None:
                taken = self._taken[len(latest)] = _near(observed)
        else:
            taken = _near(observed)
        cosines = torch.zeros(self._num_tables, len(taken), len(known))
        for number, pairs in self._pairs:
            met = torch.from_numpy(pairs.take(latest[:, None] * len(pairs) + known))
            torch.mm(taken, met, out=cosines[number])
        own_rows, past_rows = torch.from_numpy(known), torch.from_numpy(latest)
        for vectors, parts in self._vectors:
            own, near = vectors.index_select(0, own_rows), vectors.index_select(0, past_rows)
            near = taken @ near
            for number, part in parts:
                torch.mm(near[:, part], own[:, part].T, out=cosines[number])
        found: Floats = cosines.numpy()
        each = columns.reshape(self._num_tables, 4, -1)  # last, few, all, best
        each[:, 0], each[:, 1:3] = found[:, 0], found[:, -2:]
        each[:, 3] = found[:, :-2].max(1)
        if len(latest) < NUM_BEST:
            # A missing event has similarity 0.
            np.maximum(each[:, 3], 0, out=each[:, 3])

    def _of_linear(self, rows: Rows, history: Rows, columns: Floats) -> None:
        beyond = len(self._places) - 1
        read = torch.from_numpy(self._places[np.minimum(history, beyond)])
        wanted = self._places[np.minimum(rows, beyond)]
        # Whole rows of weights are added faster than single ones are found.
        latest = torch.tensor([0, max(0, len(history) - NUM_LINEAR)])
        sums = functional.embedding_bag(read, self._weights, latest, mode="sum").numpy()
        before, recent = sums[:, wanted]
        scores = before + recent
        count = np.float32(len(rows))
        above = scores - scores.sum() / count
        spread = np.sqrt(np.square(above).sum() / count)
        columns[0], columns[2] = scores, recent
        columns[1] = above / np.maximum(spread, np.float32(1e-6))


def _near(observed: NDArray[np.bool_]) -> Tensor:
    """Return what of the events meets the candidates: the latest, and means over few and over all.

    Means of cosines are products with a mean, so events are added before they meet candidates.
    """
    length = len(observed)
    taken = np.zeros((min(length, NUM_BEST) + 2, length), np.float32)
    taken[: len(taken) - 2, : len(taken) - 2] = np.eye(len(taken) - 2)
    taken[-2, :NUM_RECENT] = 1 / _at_least_one(observed[:NUM_RECENT])
    taken[-1] = 1 / _at_least_one(observed)
    return torch.from_numpy(taken * observed)


def _at_least_one(observed: NDArray[np.bool_]) -> int:
    return max(1, int(observed.sum()))


def _reciprocal(ranks: Rows) -> Floats:
    found: Floats = ((1 + CONSTANT) / (CONSTANT + ranks)).astype(np.float32)
    return found
