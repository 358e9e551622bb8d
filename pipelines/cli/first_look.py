"""What the demo shows while it still runs: baselines and a two-tower on validation, a few lists.

They are fitted on train alone; what is served at the end merges more models, ranks what they find
and is fitted on all events.

Axes: B queries, N item rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipelines.config.run import RunConfig
from pipelines.inputs.tensors import read_inputs, released_order, retrieval_settings
from recsys.data.batch import JaggedBatch
from recsys.evaluation.ranking import RankingConfig
from recsys.fitting.catalogue import CATALOGUE
from recsys.fitting.inputs import ModelInputs
from recsys.fitting.queries import EvaluationQueries, measure
from recsys.models.names import TWO_TOWER
from recsys.models.outside import Over
from recsys.models.two_tower import TwoTower
from recsys.retrieval.sources import ScoredSource
from serving.surfaces import HOME

Score = Callable[[JaggedBatch], Tensor]


class UserList(NamedTuple):
    """A user's latest items and what the two-tower recommends, by display text."""

    user_id: str
    history: list[str]
    recommended: list[str]


class FirstModels(NamedTuple):
    """What is fitted once the two-tower is trained, over the released order of tied times."""

    inputs: ModelInputs
    two_tower: TwoTower
    scores: dict[str, Score]
    """By model, the two-tower among them."""

    @classmethod
    def load(cls, workspace: Path) -> FirstModels:
        """Read the artefacts of fit_baselines and train_two_tower."""
        features = workspace / "build_features"
        order = released_order(features)
        inputs = read_inputs(features, workspace / "embed_items", order)
        two_tower = TwoTower.load(
            workspace / "train_two_tower" / order / TWO_TOWER.name,
            inputs.catalogue,
            backend="torch",
        )
        scores: dict[str, Score] = {}
        for spec in CATALOGUE:
            folder = workspace / "fit_baselines" / order / spec.name
            if folder.exists():
                scores[spec.name] = spec.load(folder, Over(inputs.catalogue)).score
        return cls(inputs, two_tower, {**scores, TWO_TOWER.name: two_tower.score})


def first_metrics(models: FirstModels, config: RunConfig) -> dict[str, Mapping[str, float]]:
    """Rank the full catalogue for (a sample of) the validation users; metrics by model."""
    queries = EvaluationQueries.of(models.inputs, "validation", retrieval_settings(config))
    queries = queries.sample(config.two_tower_training.validation_users, config.seed)
    measured = RankingConfig(ks=(10, 50))
    return {
        name: measure(ScoredSource(score), queries, measured)
        for name, score in models.scores.items()
    }


@torch.no_grad()
def first_lists(
    models: FirstModels, features: Path, user_rows: list[int], k: int
) -> list[UserList]:
    """Recommend to a few users by the two-tower, what they did in train left out."""
    titles = pl.read_parquet(features / "items.parquet").sort("item_row")["display_text"].to_list()
    users = pl.read_parquet(features / "users.parquet", columns=["user_row", "user_id"])
    user_ids = dict(users.iter_rows())
    sequences, found = models.inputs.sequences, []
    for row in user_rows:
        first, end = int(sequences.offsets[row]), int(sequences.train_end[row])
        queries = models.inputs.queries(np.array([end]), max_history=HOME.max_history)
        scores = models.two_tower.score(queries)[0]  # [N]
        history = np.asarray(sequences.item_rows[first:end])
        scores[history.tolist()] = -torch.inf
        best: NDArray[np.int64] = scores.topk(k).indices.numpy()
        found.append(
            UserList(
                user_ids[row],
                [titles[item - 1] for item in history[::-1][:k]],
                [titles[item - 1] for item in best],
            )
        )
    return found
