"""What orders the candidates of the blend: the artefact of train_ranker.

<order>/ranker/        what is served, where validation has nothing against it: the network, the
                       weights that merge its candidates, item-to-item weights of all events,
                       calibration.json
<order>/measured/      item-to-item weights of train, by which validation and test are measured
<order>/ranker.json    what validation says, whether it is served and why
<order>/trunks.json    the ranker and others of equal compute on validation: order, probabilities,
                       use of experts

Without a ranker there is ranker.json alone, which says why.

Axes: B queries, k list length.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.top_k import TopK
from recsys.models.item_tower import ItemCatalogue
from recsys.models.ranker.batch import RankingBatch
from recsys.models.ranker.model import Ranker
from recsys.retrieval.blend.candidate_features import ranking_candidates
from recsys.retrieval.blend.history_features import HistoryFeatures
from recsys.retrieval.blend.learned import LearnedBlend
from recsys.retrieval.blend.source_lists import blended_lists
from recsys.training.ranker_fit import scores_as_served

RANKED = "ranked"
"""Row of the metrics."""
RANKER, MEASURED = "ranker", "measured"
FILE = "ranker.json"
CALIBRATION = "calibration.json"
TRUNKS = "trunks.json"
"""What became of each trunk that was trained: order, probabilities, use of experts."""
CANDIDATES = "candidates.json"
"""How many candidates are ranked."""


def reordered(top: TopK, scores: Tensor) -> TopK:
    """Put the first places of lists in the order of new scores; what follows stays.

    Args:
        top: [B, L].
        scores: Of the first k places, [B, k]; -inf at holes. Among equals the order stays.

    Returns:
        Lists whose scores count down from 0, because only places compare.
    """
    order = scores.sort(dim=1, descending=True, stable=True).indices
    count = scores.shape[1]
    rows = torch.cat([top.item_rows[:, :count].gather(1, order), top.item_rows[:, count:]], dim=1)
    places = -torch.arange(rows.shape[1], dtype=torch.float32).expand(len(rows), -1)
    return TopK(places.masked_fill(rows < 1, -torch.inf), rows)


@dataclass(frozen=True, kw_only=True)
class ProfileRanker:
    """A ranker with what makes its candidates."""

    blend: LearnedBlend
    """Of the sources of profile ``fast``; learned from the events that the ranker learned from."""
    model: Ranker
    against_history: HistoryFeatures
    num_candidates: int

    def lists(self, lists: dict[str, TopK], queries: JaggedBatch, item_counts: Tensor) -> TopK:
        """Merge lists and order their first places.

        Args:
            lists: By source.
            queries: ``history`` as sources read it, and what else the ranker reads.
            item_counts: Events of each item that the sources were fitted on, [N].
        """
        part = {name: lists[name] for name in self.blend.sources}
        history = queries["history"]
        length = sum(top.item_rows.shape[1] for top in part.values())
        whole = blended_lists(self.blend, part, history.lengths(), item_counts, length)
        made = ranking_candidates(
            self.blend, part, history, item_counts, self.num_candidates, self.against_history
        )
        rows = made.blended.item_rows
        there = rows > 0
        counts = there.sum(1)
        offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        batch = RankingBatch(queries, Jagged(rows[there], offsets), None, made.numbers[there])
        scores = scores_as_served(self.model, batch, there)
        return reordered(TopK(whole.scores, whole.item_rows), scores)


def told_of(directory: Path) -> dict[str, Any]:
    """Read what a tie order's folder says of its ranker."""
    told: dict[str, Any] = json.loads((directory / FILE).read_text(encoding="utf-8"))
    return told


def load_ranker(directory: Path, catalogue: ItemCatalogue) -> ProfileRanker | None:
    """Read the ranker of a tie order's folder, to be measured; None where there is none."""
    if not (directory / RANKER).exists():
        return None
    return ProfileRanker(
        blend=LearnedBlend.load(directory / RANKER),
        model=Ranker.load(directory / RANKER, catalogue),
        against_history=HistoryFeatures.load(directory / MEASURED, catalogue),
        num_candidates=told_of(directory)["num_candidates"],
    )


def served_ranker(directory: Path) -> Path | None:
    """Name the ranker that a bundle carries; None where the blend's order is served."""
    if not (directory / FILE).exists() or not told_of(directory)["served"]:
        return None
    return directory / RANKER
