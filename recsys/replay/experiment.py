"""Models fitted on the events of one moment by given settings, as sources that rank every item.

Axes: N item rows.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from recsys.data.batch import Jagged
from recsys.data.dataset import Split
from recsys.data.top_k import TopK
from recsys.evaluation.ranking import per_user_metric
from recsys.fitting.blend import FittedBlend, fit_blend
from recsys.fitting.catalogue import SPECS
from recsys.fitting.queries import EvaluationQueries, ModelInputs, RetrievalSettings, rank_queries
from recsys.fitting.source_lists import SourceLists, known_demand
from recsys.fitting.spec import Data, ModelSpec, Start, TrainingRun
from recsys.models.names import ModelName, spec_at
from recsys.retrieval.blend.config import BlendConfig
from recsys.retrieval.sources import Source, joined_lists
from recsys.training.loop import TrainResult
from recsys.training.passes import TrainingConfig


def is_replayed(names: ModelName) -> bool:
    """Return whether a model can be replayed and tuned: one of profile ``fast`` for new items."""
    return names.profile == "fast" and not names.repeats


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings of the models, of their blend and of the lists."""

    models: Mapping[str, Any]
    """Settings by model, in the order of a table's rows."""
    trainings: Mapping[str, TrainingConfig] = field(default_factory=dict)
    blend: BlendConfig = field(default_factory=BlendConfig)
    fusion_weights: Mapping[str, float] = field(default_factory=dict)
    """Fallback weight per source if no weights are learned (default 1)."""
    metric: str = "ndcg@10"
    """Metric that blends are judged by."""
    retrieval: RetrievalSettings = field(default_factory=RetrievalSettings)
    outside: Mapping[str, str] = field(default_factory=dict)
    """Addresses of the models of other packages, by name."""

    def spec(self, name: str) -> ModelSpec:
        """Return the catalogue's row of a model."""
        return spec_at(name, self.outside[name]) if name in self.outside else SPECS[name]

    def digest(self) -> str:
        """Return 12 digits that change with any setting."""
        settings = asdict(self)
        if not self.outside:
            # Folders of replays that are without such models keep their digest.
            del settings["outside"]
        text = json.dumps(settings, sort_keys=True, default=vars)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def fitted_blend(
        self, lists: SourceLists, drawn: torch.Tensor, device: torch.device
    ) -> FittedBlend:
        """Learn the weights of a blend on some of the queries."""
        weights = {name: self.fusion_weights.get(name, 1.0) for name in lists.lists}
        examples = lists.of(drawn, tuple(lists.lists))
        return fit_blend(examples, self.blend, weights, self.metric, device)


@dataclass(frozen=True, kw_only=True)
class PreparedData:
    """A data set with the settings of its models."""

    name: str
    data_digest: str
    """Digest of the raw events."""
    recipe: Recipe
    inputs: ModelInputs

    @property
    def num_item_rows(self) -> int:
        return self.inputs.sizes.num_item_rows


@dataclass(frozen=True, kw_only=True)
class RecipeFitter:
    """Models to be fitted on the train split of some inputs, with one seed."""

    recipe: Recipe
    inputs: ModelInputs
    seed: int
    device: torch.device
    checkpoints: Path | None = None
    """Folder of the states from which a killed training resumes; None keeps none."""

    def queries(self, split: Split) -> EvaluationQueries:
        return EvaluationQueries.of(self.inputs, split, self.recipe.retrieval)

    def start(self, spec: ModelSpec) -> Start:
        """Start afresh; validation chooses steps and settings."""
        run = TrainingRun(
            seed=self.seed,
            device=self.device,
            checkpoint_dir=self.checkpoints and self.checkpoints / spec.name,
        )
        training = self.recipe.trainings.get(spec.name)
        if training is None:
            return Start(run, self.queries("validation") if spec.chooses else None)
        queries = self.queries("validation").sample(training.validation_users, self.seed)
        return Start(run, queries, training)

    def can_train(self, spec: ModelSpec) -> bool:
        """Return whether a trained model has an example."""
        assert spec.num_examples is not None
        settings = self.recipe.models[spec.name]
        return spec.num_examples(settings, self.inputs.sequences, "train") > 0

    def fit(
        self, spec: ModelSpec, settings: Any = None, start: Start | None = None
    ) -> FittedSource:
        """Fit a model and rank every item by it.

        Args:
            settings: The recipe's by default.
            start: Afresh by default.
        """
        data = Data(inputs=self.inputs)
        settings = settings or self.recipe.models[spec.name]
        fitted = spec.fit(settings, data, "train", start or self.start(spec))
        if fitted is None:
            raise ValueError(f"{spec.name} has nothing to rank by here; leave it out of the models")
        found = self.source(spec, fitted.model)
        if found.model is not None:
            return found._replace(training=fitted.result, num_examples=fitted.num_examples)
        return found._replace(settings=fitted.model.settings if spec.chooses else None)

    def source(self, spec: ModelSpec, model: Any) -> FittedSource:
        model = model.to(self.device)
        is_trained = isinstance(model, nn.Module)
        model = model.eval() if is_trained else model
        source = spec.ranks_by(model, Data(inputs=self.inputs), sys.maxsize)
        return FittedSource(source, model=model if is_trained else None)


class FittedSource(NamedTuple):
    """A source, with its model and how its training went if it had one."""

    source: Source
    training: TrainResult | None = None
    model: nn.Module | None = None
    num_examples: int = 0
    settings: Mapping[str, Any] | None = None
    """Those that validation chose."""


def lists_of_source(source: Source, queries: EvaluationQueries, device: torch.device) -> TopK:
    """Query a source; lists come back to the host, [Q, k]."""
    parts = []
    for batch in queries.batches(device):
        lists = source(batch.queries, batch.allowed, queries.list_length).lists
        parts.append(TopK(*(part.cpu() for part in lists)))
    return joined_lists(parts)


def measure(fitter: RecipeFitter, row: str, metric: str) -> NDArray[np.float64]:
    """Measure every validation query, [Q]; NaN without a target.

    Args:
        row: Model that is measured; the blend of all if it is none of the recipe's.
    """
    recipe, device, seed = fitter.recipe, fitter.device, fitter.seed
    queries = fitter.queries("validation")
    if row in recipe.models:
        ranks = rank_queries(fitter.fit(recipe.spec(row)).source, queries, device).ranks
        return per_user_metric(Jagged(ranks, queries.targets().offsets), metric).numpy()
    lists = {
        name: lists_of_source(fitter.fit(recipe.spec(name)).source, queries, device)
        for name in recipe.models
    }
    counts, demand = fitter.inputs.item_counts("train"), known_demand(fitter.inputs, "train")
    examples = SourceLists.of_queries(lists, queries, counts, seed, demand)
    drawn = torch.from_numpy(queries.held_out.drawn(recipe.blend.max_queries, seed))
    blend = recipe.fitted_blend(examples, drawn, device).blend
    return blend.measured(examples, metric, by_half=True, device=device).numpy()
