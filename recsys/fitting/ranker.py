"""Measure a ranker, and choose on validation how much of its correction of the blend it keeps.

Axes: U queries, S shares.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from recsys.data.top_k import reranked_places
from recsys.evaluation.ranking import distinct_targets, list_ranks, per_user_metric
from recsys.fitting.source_lists import NUM_FOLDS
from recsys.models.ranker.model import Ranker
from recsys.training.ranker_fit import predict_logits, score_candidates
from recsys.training.ranking_examples import RankingExamples

SHARES = (0.0, 0.25, 0.5, 1.0)
"""Shares of a ranker's correction; among equals the least is taken."""


class Shared(NamedTuple):
    """A ranker with the share of its correction that validation chose."""

    model: Ranker
    share: float
    values: Tensor
    """Metric of its order by validation query, each half of the users by the share that is best for
    the other, [U]."""


def best_share(
    model: Ranker,
    judged: RankingExamples,
    folds: Tensor,
    examples: RankingExamples,
    held_out: Tensor,
    metric: str,
) -> Shared:
    """Choose how much of its correction of the blend's score a ranker keeps, and calibrate it.

    Requests after training events want other corrections: a part of one is often better.

    Args:
        judged: Validation queries.
        folds: Half of each one's user, [U].
        examples: Those of which it was trained on some.
        held_out: The others, which calibrate it.
    """
    present, labels = examples.candidates.present[held_out], examples.labels[held_out]
    models = [model.with_share(share) for share in SHARES]
    for one in models:
        one.fit_calibration(predict_logits(one, examples, held_out), labels[present])
    every = torch.arange(len(judged.labels))
    tried = torch.stack([metric_by_query(one, judged, every, metric) for one in models])  # [S, U]
    values = tried[0].clone()
    for half in range(NUM_FOLDS):
        own = folds == half
        values[own] = tried[int(tried[:, ~own].nanmean(1).argmax()), own]
    best = int(tried.nanmean(1).argmax())
    return Shared(models[best], SHARES[best], values)


def metric_by_query(
    ranker: Ranker, examples: RankingExamples, chosen: Tensor, metric: str
) -> Tensor:
    """Measure a ranker's order of each query's candidates, [U]; NaN without a target."""
    rows = examples.candidates.item_rows[chosen]
    places = reranked_places(score_candidates(ranker, examples, chosen), rows.shape[1])
    targets = distinct_targets(examples.targets.take(chosen))
    ranks = list_ranks(rows.gather(1, places), targets)
    return per_user_metric(ranks, metric)
