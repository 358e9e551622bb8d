"""What orders the candidates of the blend: the artefact of train_ranker.

<order>/ranker/        what is served, where validation has nothing against it; calibration.json
<order>/folds/<i>/     trained without half i of the validation users, to measure that half
<order>/ranker.json    what validation says, whether it is served and why

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

from pipelines.blends import NUM_FOLDS, ProfileBlend, taken
from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.top_k import TopK
from recsys.models.item_tower import ItemCatalogue
from recsys.models.ranker import Ranker
from recsys.models.ranking_batch import RankingBatch
from recsys.retrieval.candidate_numbers import ranking_candidates
from recsys.retrieval.learned_blend import LearnedBlend

RANKED = "ranked"
"""Row of the metrics."""
RANKER = "ranker"
FILE = "ranker.json"
CALIBRATION = "calibration.json"
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


def scores_as_served(ranker: Ranker, batch: RankingBatch, there: Tensor) -> Tensor:
    """Score candidates by tiles and lay them out, -inf at holes, [B, k].

    Args:
        there: Which places of the lists the batch's candidates are, [B, k].
    """
    scores = torch.full(there.shape, -torch.inf)
    scores[there] = ranker.score(batch)
    return scores


@dataclass(frozen=True, kw_only=True)
class ProfileRanker:
    """A ranker with those that measure it."""

    blend: ProfileBlend
    """Of profile ``fast``, whose candidates are ranked."""
    served: Ranker
    folds: tuple[Ranker, ...]
    """By half of the validation users: rankers that the half had no part in."""
    num_candidates: int

    def lists(
        self,
        lists: dict[str, TopK],
        queries: JaggedBatch,
        item_counts: Tensor,
        folds: Tensor | None = None,
    ) -> TopK:
        """Merge lists and order their first places, as served or each query by its half's.

        Args:
            queries: ``history`` and what else the ranker reads.
            folds: Half of each query's user, [B]; None takes what is served.
        """
        lengths = queries["history"].lengths()
        top = self.blend.lists(lists, lengths, item_counts, folds)
        ways = [(self.blend.served, self.served)]
        if folds is not None:
            ways = list(zip(self.blend.folds, self.folds, strict=True))
        found = []
        for fold, (blend, ranker) in enumerate(ways):
            everyone = torch.arange(len(lengths))
            rows = everyone if folds is None else everyone[folds == fold]
            if len(rows) == 0:
                continue
            part = {name: taken(lists[name], rows) for name in blend.sources}
            scores = self._scores(part, _take(queries, rows), item_counts, blend, ranker)
            found.append((rows, reordered(taken(top, rows), scores)))
        return _together(found, top)

    def _scores(
        self,
        lists: dict[str, TopK],
        queries: JaggedBatch,
        item_counts: Tensor,
        blend: LearnedBlend,
        ranker: Ranker,
    ) -> Tensor:
        lengths = queries["history"].lengths()
        made = ranking_candidates(blend, lists, lengths, item_counts, self.num_candidates)
        rows = made.blended.item_rows
        there = rows > 0
        counts = there.sum(1)
        offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        batch = RankingBatch(queries, Jagged(rows[there], offsets), None, made.numbers[there])
        return scores_as_served(ranker, batch, there)


def _take(queries: JaggedBatch, rows: Tensor) -> JaggedBatch:
    return JaggedBatch({name: feature.take(rows) for name, feature in queries.features.items()})


def _together(parts: list[tuple[Tensor, TopK]], like: TopK) -> TopK:
    scores, rows = torch.empty_like(like.scores), torch.empty_like(like.item_rows)
    for places, top in parts:
        scores[places], rows[places] = top
    return TopK(scores, rows)


def told_of(directory: Path) -> dict[str, Any]:
    """Read what a tie order's folder says of its ranker."""
    told: dict[str, Any] = json.loads((directory / FILE).read_text(encoding="utf-8"))
    return told


def load_ranker(
    directory: Path, catalogue: ItemCatalogue, blend: ProfileBlend
) -> ProfileRanker | None:
    """Read the rankers of a tie order's folder; None where there is none."""
    if not (directory / RANKER).exists():
        return None
    return ProfileRanker(
        blend=blend,
        served=Ranker.load(directory / RANKER, catalogue),
        folds=tuple(
            Ranker.load(directory / "folds" / str(fold), catalogue) for fold in range(NUM_FOLDS)
        ),
        num_candidates=told_of(directory)["num_candidates"],
    )


def served_ranker(directory: Path) -> Path | None:
    """Name the ranker that a bundle carries; None where the blend's order is served."""
    if not (directory / FILE).exists() or not told_of(directory)["served"]:
        return None
    return directory / RANKER
