"""The ranker with other trunks of equal compute, each trained and judged as the one that is served.

Axes: U validation users.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pipelines.candidates.examples import standard_error
from pipelines.config.run import RunConfig
from pipelines.ranking.fit import fit_ranker, make_ranker, values_of
from pipelines.ranking.measures import measures_of
from pipelines.training.run import TrainingRun
from recsys.data.batch import Jagged
from recsys.fitting.inputs import ModelInputs
from recsys.models.ranker.config import Trunk, at_equal_compute, flops_of
from recsys.models.ranker.model import Ranker
from recsys.training.loop import TrainResult
from recsys.training.ranking_examples import RankingExamples
from recsys.training.shown_lists import ShownLists


class Task(NamedTuple):
    """Queries with candidates, and what was taken."""

    examples: RankingExamples
    targets: Jagged


class Bench(NamedTuple):
    """What every trunk learns from and is judged by."""

    inputs: ModelInputs
    config: RunConfig
    sources: Sequence[str]
    item_counts: Tensor
    """Of the events that sources were fitted on to learn from, [N]."""
    features: Path
    learned: Task
    judged: Task
    """Validation users."""
    shown: ShownLists | None = None
    """Lists of which it is known what was seen and left."""
    num_slots: int = 0
    """Of these lists."""

    def ranker(self, tasks: Sequence[str]) -> Ranker:
        """Build the untrained ranker of the configuration."""
        return make_ranker(
            self.inputs, self.item_counts, self.config, tasks, self.sources, self.num_slots
        )

    def fit(self, model: Ranker, run: TrainingRun) -> tuple[Ranker, TrainResult]:
        """Train it."""
        return fit_ranker(model, *self.learned, self.shown, self.config, run)

    def values(self, model: Ranker) -> Tensor:
        """Measure its order for each validation user, [U]; NaN without a target."""
        everyone = torch.arange(len(self.judged.examples.labels))
        metric = self.config.evaluation.primary_metric
        return values_of(model, *self.judged, everyone, metric)

    def measures(self, model: Ranker) -> dict[str, Any]:
        """Tell its probabilities and the use of its experts on validation."""
        return measures_of(model, self.judged.examples, self.inputs, self.features)

    def with_trunk(self, model: Ranker, trunk: Trunk) -> Bench:
        """Give the ranker another trunk that costs a candidate as much."""
        ranker = at_equal_compute(model.config, model.inputs, trunk)
        known = replace(
            ranker,
            task_weights=self.config.ranker.task_weights,
            task_values=self.config.ranker.task_values,
        )
        return self._replace(config=replace(self.config, ranker=known))


def row_of(bench: Bench, model: Ranker, values: Tensor, served: Tensor) -> dict[str, Any]:
    """Describe a trunk.

    Args:
        bench: What it was judged by.
        model: Trained.
        values: Of its order, [U].
        served: Of the order of the trunk that is served.
    """
    differences = values - served
    differences = differences[~differences.isnan()]
    return {
        "trunk": model.config.trunk,
        "flops": flops_of(model.config, model.inputs)["total"],
        "parameters": sum(one.numel() for one in model.parameters()),
        "validation": float(values.nanmean()),
        "ahead": float(differences.mean()),
        "standard_error": standard_error(differences),
        "examined": [] if model.examination is None else model.examination.curve().tolist(),
        **bench.measures(model),
    }
