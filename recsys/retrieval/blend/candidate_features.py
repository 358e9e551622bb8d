"""Merged lists as candidates of a ranker, each with the numbers that retrieval knows of it.

What a ranker is trained on and what it is served come from here.

Axes: B queries, S sources, F numbers of a candidate, N item rows, k candidates of a query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from recsys.data.batch import Jagged
from recsys.data.top_k import TopK
from recsys.retrieval.blend.fusion import ABSENT, CONSTANT, Blended
from recsys.retrieval.blend.history_features import HISTORY_NUMBERS, HistoryFeatures
from recsys.retrieval.blend.learned import LearnedBlend
from recsys.retrieval.blend.source_features import list_scores
from recsys.retrieval.blend.source_lists import blended_lists

BASE = "blend.lead"
"""The number that a ranker corrects."""
OF_BLEND = (BASE, "blend.reciprocal_rank", "item.events")
OF_SOURCE = ("lead", "z_score", "reciprocal_rank", "contribution")


class RankingCandidates(NamedTuple):
    """The first places of merged lists."""

    blended: Blended
    """[B, k]."""
    numbers: Tensor
    """[B, k, F] float32, 0 where the list is short."""


def number_names(sources: Sequence[str]) -> tuple[str, ...]:
    """Name the F numbers of a candidate.

    Of the blend: its score below the first place's, its reciprocal rank, the item's events
    (log1p). Of each source: lead and z-score in its list, reciprocal rank, what it added to the
    blend's score; 0 where it does not have the item. Then what ties it to the history.
    """
    of_sources = (f"{source}.{name}" for source in sources for name in OF_SOURCE)
    return (*OF_BLEND, *of_sources, *HISTORY_NUMBERS)


def ranking_candidates(
    blend: LearnedBlend,
    lists: Mapping[str, TopK],
    history: Jagged,
    item_counts: Tensor,
    k: int,
    against_history: HistoryFeatures,
) -> RankingCandidates:
    """Merge lists and number the first k places; arguments as of ``blended_lists``.

    A source of the blend that has no list here has 0 in its columns.

    Args:
        history: What sources read of each query, oldest first.
        against_history: Numbers candidates against it.
    """
    blended = blended_lists(blend, lists, history.lengths(), item_counts, k)
    of_lists = _numbers(blend, lists, blended, item_counts)
    of_history = against_history.numbers(history, blended.item_rows, item_counts)
    return RankingCandidates(blended, torch.cat([of_lists, of_history], dim=2))


def _numbers(
    blend: LearnedBlend, lists: Mapping[str, TopK], blended: Blended, item_counts: Tensor
) -> Tensor:
    there = blended.item_rows > 0
    rank = torch.arange(1, there.shape[1] + 1)
    leads = blended.scores.masked_fill(~there, 0)
    leads = leads - leads[:, :1]
    # Items that were appended behind the counts have none.
    known = blended.item_rows.clamp(min=0)
    inside = known < len(item_counts)
    events = item_counts.float()[known.masked_fill(~inside, 0)].masked_fill(~inside, 0)
    reciprocal = (1 + CONSTANT) / (CONSTANT + rank).expand_as(leads)
    columns = [leads, reciprocal, events.log1p()]
    for place, source in enumerate(blend.sources):
        if source not in blended.sources:
            columns += [torch.zeros_like(leads)] * len(OF_SOURCE)
            continue
        column = blended.sources.index(source)
        columns += _of_source(blended, lists[source], column, float(blend.scales[place]))
    return torch.stack(columns, dim=2).masked_fill(~there[:, :, None], 0)


def _of_source(blended: Blended, top: TopK, column: int, scale: float) -> list[Tensor]:
    ranks = blended.source_ranks[:, :, column]
    present = ranks != ABSENT
    counted = list_scores(*top)
    # A rank says where in the list it stands.
    places = (ranks - 1).clamp(min=0)
    taken = [
        part.gather(1, places).masked_fill(~present, 0)
        for part in (counted.leads * scale, counted.z_scores)
    ]
    reciprocal = ((1 + CONSTANT) / (CONSTANT + ranks)).masked_fill(~present, 0)
    assert blended.contributions is not None
    return [*taken, reciprocal, blended.contributions[:, :, column]]
