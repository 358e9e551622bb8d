"""Merged lists as candidates of a ranker, with the features that retrieval has of each.

Training, offline evaluation and adapters build candidates here; a request builds the same ones in
``candidate_features_one.py``.

Axes: B queries, S sources, F features of a candidate, N item rows, k candidates of a query.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from recsys.data.batch import Jagged
from recsys.data.top_k import TopK
from recsys.models.item_tower import ItemCatalogue
from recsys.models.ranker.network import Candidates
from recsys.retrieval.blend.history_features import HISTORY_FEATURES, HistoryFeatures
from recsys.retrieval.blend.learned import LearnedBlend
from recsys.retrieval.blend.source_features import ABSENT, CONSTANT, Blended, list_scores


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


FILE = "candidates.json"
BASE = "blend.lead"
"""The feature that a ranker starts from and corrects."""
OF_BLEND = (BASE, "blend.reciprocal_rank", "item.events")
OF_SOURCE = ("lead", "z_score", "reciprocal_rank", "contribution")


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
