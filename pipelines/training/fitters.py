"""The fitter of each model, set up by a run's configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipelines.config.run import RunConfig, TrainingConfig
from pipelines.inputs.tensors import retrieval_settings
from recsys.data.dataset import FitSplit, Sequences
from recsys.fitting.baselines import Baseline, fit_content, fit_item_to_item, fit_popularity
from recsys.fitting.generative import SequenceTeacher, fit_generative
from recsys.fitting.inputs import ModelInputs
from recsys.fitting.item_weights import (
    CHOICE_USERS,
    fit_ease,
    fit_item_knn,
    fit_next_basket,
    fit_repeats,
)
from recsys.fitting.queries import EvaluationQueries
from recsys.fitting.sequence import fit_sequence, num_windows
from recsys.fitting.training import Fitted, StopBy, TrainingRun, device_named
from recsys.fitting.two_tower import fit_two_tower, num_labels
from recsys.models.generative.model import GenerativeConfig
from recsys.models.item_weights.model import ItemWeights
from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.model import SequenceModel
from recsys.semantic_ids.codes import ItemCodes

CHOOSING = ("ease", "item_knn", "repeats", "next_basket")
"""Models among whose settings validation chooses."""


@dataclass(frozen=True, kw_only=True)
class ModelFitter:
    """Fits one model by a run's settings."""

    name: str
    training: TrainingConfig
    num_examples: Callable[[Sequences, FitSplit], int]
    fit: Callable[[ModelInputs, TrainingRun, StopBy, FitSplit], Fitted[Any]]


def sequence_settings(config: RunConfig) -> SequenceConfig:
    """Return the sequence model's settings; lists may repeat the history only if labels may."""
    if config.evaluation.exclude_history:
        return config.sequence
    return replace(config.sequence, leave_out_history=False)


def generative_settings(config: RunConfig) -> GenerativeConfig:
    """Return the generative model's settings, as ``sequence_settings``."""
    if config.evaluation.exclude_history:
        return config.generative
    return replace(config.generative, leave_out_history=False)


def baselines_of(
    inputs: ModelInputs, config: RunConfig, split: FitSplit, chosen: Path | None = None
) -> dict[str, Baseline]:
    """Fit the models without a training that are on; content is left out where items have none.

    Args:
        inputs: The events.
        config: The run's.
        split: What is fitted on.
        chosen: Folder of these models as they were fitted on train, whose settings are taken; None
            chooses among a model's settings by validation.
    """
    judge, device = None, device_named(config.training.device)
    if chosen is None:
        judge = EvaluationQueries.of(inputs, "validation", retrieval_settings(config))
        judge = judge.sample(CHOICE_USERS, config.seed)
    else:
        config = with_chosen(config, chosen)
    models: dict[str, Baseline] = {
        "popularity": fit_popularity(inputs, config.popularity, split),
        "item_to_item": fit_item_to_item(inputs, config.item_to_item, split),
    }
    if config.ease.enabled:
        models["ease"] = fit_ease(inputs, config.ease, split, judge, device)
    if config.item_knn.enabled:
        models["item_knn"] = fit_item_knn(inputs, config.item_knn, split, judge, device)
    if not config.evaluation.exclude_history:
        models |= fit_repeating(inputs, config, split, judge)
    content = fit_content(inputs, config.content_similarity)
    return models if content is None else {**models, "content": content}


def fit_repeating(
    inputs: ModelInputs, config: RunConfig, split: FitSplit, judge: EvaluationQueries | None
) -> dict[str, Baseline]:
    """Fit the models for lists that may hold the history; baskets need times."""
    models: dict[str, Baseline] = {}
    if config.repeats.enabled:
        models["repeats"] = fit_repeats(inputs, config.repeats, judge)
    if config.next_basket.enabled and inputs.sequences.times is not None:
        models["next_basket"] = fit_next_basket(inputs, config.next_basket, split, judge)
    return models


def with_chosen(config: RunConfig, folder: Path) -> RunConfig:
    """Take the settings that validation chose for the models in a folder of fit_baselines."""
    found: dict[str, Any] = {}
    for name in CHOOSING:
        if (folder / name).exists():
            settings = ItemWeights.load(folder / name).settings
            found[name] = replace(getattr(config, name), **settings)
    return replace(config, **found)


def two_tower_fitter(config: RunConfig) -> ModelFitter:
    """Set up the two-tower."""
    return ModelFitter(
        name="two_tower",
        training=config.training,
        num_examples=num_labels,
        fit=lambda inputs, run, stop_by, split: fit_two_tower(
            inputs, config.two_tower, config.training, run, stop_by, split=split
        ),
    )


def sequence_fitter(config: RunConfig) -> ModelFitter:
    """Set up the sequence model."""
    settings = sequence_settings(config)
    return ModelFitter(
        name="sequence",
        training=config.sequence_training,
        num_examples=lambda events, split: num_windows(events, split, settings.max_length),
        fit=lambda inputs, run, stop_by, split: fit_sequence(
            inputs, settings, config.sequence_training, run, stop_by, split=split
        ),
    )


def generative_fitter(
    config: RunConfig,
    item_codes: Callable[[], ItemCodes],
    sequence_folder: Path | None,
) -> ModelFitter:
    """Set up the generative model.

    Args:
        config: The run's.
        item_codes: Reads the semantic IDs.
        sequence_folder: Of the sequence model that teaches it; None where none does.
    """
    settings, training = generative_settings(config), config.generative_training

    def fit(inputs: ModelInputs, run: TrainingRun, stop_by: StopBy, split: FitSplit) -> Fitted[Any]:
        teacher = None
        if sequence_folder is not None:
            sequence = SequenceModel.load(sequence_folder, inputs.catalogue)
            teacher = SequenceTeacher(sequence, training.teaching)
        return fit_generative(
            inputs, item_codes(), settings, training, run, stop_by, split=split, teacher=teacher
        )

    return ModelFitter(
        name="generative",
        training=training,
        num_examples=lambda events, split: num_windows(events, split, settings.max_length),
        fit=fit,
    )
