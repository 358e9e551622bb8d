"""Fit the models of the catalogue that have no training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from pipelines.candidates.load import list_models
from pipelines.config.run import RunConfig
from pipelines.inputs.tensors import retrieval_settings
from pipelines.training.fitters import is_on, own_settings
from recsys.data.dataset import FitSplit
from recsys.fitting.counted import choice_users
from recsys.fitting.queries import EvaluationQueries, ModelInputs
from recsys.fitting.spec import Data, Start, TrainingRun, device_named


def fit_untrained(
    inputs: ModelInputs, config: RunConfig, split: FitSplit, chosen: Path | None = None
) -> dict[str, Any]:
    """Fit the models without a training that are on and have something to be fitted on.

    Args:
        chosen: Folder of these models as they were fitted on train, whose settings are taken; None
            chooses among a model's settings by validation.
    """
    judge = None
    if chosen is None:
        judge = EvaluationQueries.of(inputs, "validation", retrieval_settings(config))
        judge = judge.sample(choice_users(inputs.sizes.num_item_rows), config.seed)
    data = Data(inputs=inputs, settings=retrieval_settings(config))
    run = TrainingRun(seed=config.seed, device=device_named(config.device))
    models = {}
    for spec in list_models(config):
        if spec.names.training or not is_on(spec.names, config):
            continue
        settings = own_settings(spec, config)
        if chosen is not None and spec.chooses and (chosen / spec.name).exists():
            before = spec.load(chosen / spec.name, data.over).settings
            known = {name: one for name, one in before.items() if hasattr(settings, name)}
            settings = replace(settings, **known)
        fitted = spec.fit(settings, data, split, Start(run, judge))
        if fitted is not None:
            models[spec.name] = fitted.model
    return models
