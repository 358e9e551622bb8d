"""Merged lists as candidates of a ranker, with the features that retrieval has of each.

Training, offline evaluation and adapters build candidates by batches; a request builds its own by
one compiled function, or without it by the batched form, whose three hundred operations take
longer. Both give the same items, and features that are equal up to rounding; items whose merged
scores differ by no more may change places.

Axes: B queries, S sources, F features of a candidate, N item rows, k candidates of a query, n
candidates of one query, E events, D width of a table.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.batch import Jagged, one_example
from recsys.data.top_k import OneList, TopK
from recsys.kernels.one_query.ranker_op import FeaturesOfOne
from recsys.models.item_tower import ItemCatalogue
from recsys.models.ranker.network import Candidates
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
from recsys.retrieval.blend.source_features import ABSENT, CONSTANT, Blended, list_scores

FILE = "candidates.json"
BASE = "blend.lead"
"""The feature that a ranker starts from and corrects."""
OF_BLEND = (BASE, "blend.reciprocal_rank", "item.events")
OF_SOURCE = ("lead", "z_score", "reciprocal_rank", "contribution")
PAIRS_UP_TO, PAIRS_FROM = 4096, 256
"""Items, and width of their vectors, from which on the cosines of every two are kept, in at most
64 MiB: fifty times two hundred of them are looked up where two hundred vectors are copied."""
Rows = NDArray[np.int64]
Floats = NDArray[np.float32]


def blended_lists(
    blend: LearnedBlend,
    lists: Mapping[str, TopK],
    history_lengths: Tensor,
    item_counts: Tensor,
    k: int,
) -> Blended:
    """Merge lists by learned weights.

    Items that were appended after the sources were fitted count 0 events; such items have the
    odds that the blend's settings give new ones.

    Args:
        history_lengths: Of what the sources read, [B].
        item_counts: Events of each item that the sources were fitted on, [N].
    """
    log_odds = blend.config.log_odds_of_new
    return blend.blend(
        lists,
        k,
        history_lengths=history_lengths,
        item_values=item_counts.double(),
        log_odds=(item_counts == 0) * log_odds if log_odds else None,
    )


def feature_names(sources: Sequence[str]) -> tuple[str, ...]:
    """Return the F features of a candidate.

    Of the blend: its score minus the first place's, its reciprocal rank, the item's events
    (log1p). Of each source: lead and z-score in its list, reciprocal rank, its contribution to the
    blend's score; 0 where it does not have the item. Then those of ``HistoryFeatures``.
    """
    of_sources = (f"{source}.{name}" for source in sources for name in OF_SOURCE)
    return (*OF_BLEND, *of_sources, *HISTORY_FEATURES)


@dataclass(frozen=True, kw_only=True)
class CandidateBuilder:
    """Merges the sources' lists into a ranker's candidates and computes their features."""

    blend: LearnedBlend
    history_features: HistoryFeatures
    num_candidates: int
    """k."""

    def candidates(
        self, lists: Mapping[str, TopK], history: Jagged, item_counts: Tensor
    ) -> Candidates:
        """Merge lists and compute the features of the first k places.

        Args:
            lists: By source, [B, k_s] each; a source of the blend without a list has features 0.
            item_counts: Events of each item that the sources were fitted on, [N].
        """
        blended = blended_lists(
            self.blend, lists, history.lengths(), item_counts, self.num_candidates
        )
        of_lists = _list_features(self.blend, lists, blended, item_counts)
        of_history = self.history_features.features(history, blended.item_rows, item_counts)
        return Candidates(blended.item_rows, torch.cat([of_lists, of_history], dim=2))

    def save(self, directory: Path) -> None:
        """Write the blend's weights, what history features are computed from, and k."""
        self.blend.save(directory)
        self.history_features.save(directory)
        document = {"num_candidates": self.num_candidates}
        (directory / FILE).write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")

    @classmethod
    def load(
        cls, directory: Path, catalogue: ItemCatalogue, history_features: Path | None = None
    ) -> CandidateBuilder:
        """Read what ``save`` wrote, over a catalogue that may have grown."""
        path = directory / FILE
        num_candidates = json.loads(path.read_text()).get("num_candidates")
        if not (isinstance(num_candidates, int) and num_candidates >= 1):
            raise ValueError(
                f"num_candidates of {path} must be a whole number >= 1, got {num_candidates!r}; "
                "train and release the ranker again"
            )
        return cls(
            blend=LearnedBlend.load(directory),
            history_features=HistoryFeatures.load(history_features or directory, catalogue),
            num_candidates=num_candidates,
        )


def _list_features(
    blend: LearnedBlend, lists: Mapping[str, TopK], blended: Blended, item_counts: Tensor
) -> Tensor:
    present = blended.item_rows > 0
    rank = torch.arange(1, present.shape[1] + 1)
    leads = blended.scores.masked_fill(~present, 0)
    leads = leads - leads[:, :1]
    # Items that were appended after the counts have none.
    known = blended.item_rows.clamp(min=0)
    counted = known < len(item_counts)
    events = item_counts.float()[known.masked_fill(~counted, 0)].masked_fill(~counted, 0)
    reciprocal = (1 + CONSTANT) / (CONSTANT + rank).expand_as(leads)
    columns = [leads, reciprocal, events.log1p()]
    for place, source in enumerate(blend.sources):
        if source not in blended.sources:
            columns += [torch.zeros_like(leads)] * len(OF_SOURCE)
            continue
        column = blended.sources.index(source)
        columns += _source_features(blended, lists[source], column, float(blend.scales[place]))
    return torch.stack(columns, dim=2).masked_fill(~present[:, :, None], 0)


def _source_features(blended: Blended, top: TopK, column: int, scale: float) -> list[Tensor]:
    ranks = blended.source_ranks[:, :, column]
    absent = ranks == ABSENT
    scored = list_scores(*top)
    places = (ranks - 1).clamp(min=0)
    lead, z_score = (
        part.gather(1, places).masked_fill(absent, 0)
        for part in (scored.leads * scale, scored.z_scores)
    )
    reciprocal = ((1 + CONSTANT) / (CONSTANT + ranks)).masked_fill(absent, 0)
    assert blended.contributions is not None
    return [lead, z_score, reciprocal, blended.contributions[:, :, column]]


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
        blend, tops = self.blend.learned, {name: one.batch() for name, one in lists.items()}
        lengths, longest = torch.tensor([len(history)]), max(num_candidates, length)
        blended = blended_lists(blend, tops, lengths, self._counts, longest)
        first = blended.first(num_candidates)
        of_lists = _list_features(blend, tops, first, self._counts)
        of_history = self._history.features(one_example(history), first.item_rows, self._counts)
        features = torch.cat([of_lists, of_history], dim=2)[0, first.item_rows[0] > 0]
        # A sum is finite where all it adds up is.
        if not math.isfinite(float(features.sum())):
            raise ValueError("a feature of a candidate is not finite")
        return CandidatesOne(MergedOne.of(blended), features)
