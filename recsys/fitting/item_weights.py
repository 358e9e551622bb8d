"""Fit models of weights between items; validation chooses among a few settings.

A setting that is a tuple holds what is tried; the power of the recency is chosen last, by the first
of which the others are. The model keeps the chosen ones as tuples of one, so
that a refit by its settings has nothing to choose.

Axes: N item rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any, TypeVar

import numpy as np
import torch

from recsys.data.dataset import FitSplit
from recsys.evaluation.ranking import RankingConfig
from recsys.fitting.inputs import ModelInputs
from recsys.fitting.queries import EvaluationQueries, measure
from recsys.fitting.sources import weights_source
from recsys.fitting.spec import Data, ModelSpec, Start, counted
from recsys.fitting.training import Fitted
from recsys.models import names
from recsys.models.item_weights.co_occurrence import CoOccurrence, UserItems
from recsys.models.item_weights.ease import (
    EaseWeightsConfig,
    check_memory,
    ease_model,
    fits_device,
    most_frequent,
    shared_users,
)
from recsys.models.item_weights.item_knn import NO_DECAY, ItemKnnConfig, item_knn_model
from recsys.models.item_weights.model import ItemWeights
from recsys.models.item_weights.next_basket import Baskets, NextBasketConfig, next_basket_model
from recsys.models.item_weights.repeats import RepeatsConfig, repeats_model
from recsys.retrieval.sources import ScoredSource

ConfigT = TypeVar("ConfigT", EaseWeightsConfig, ItemKnnConfig)
CPU = torch.device("cpu")
METRIC = "ndcg@10"
CHOICE_USERS = 2_000
"""Validation users that settings are chosen by."""


def user_items(inputs: ModelInputs, split: FitSplit, max_events: int) -> UserItems:
    """Take each user's items that a model may see."""
    sequences = inputs.sequences
    return UserItems.of(
        np.asarray(sequences.item_rows),
        np.asarray(sequences.offsets[:-1]),
        np.asarray(sequences.visible_end(split)),
        None if sequences.times is None else np.asarray(sequences.times),
        inputs.sizes.num_item_rows,
        max_events,
    )


def fit_ease(
    inputs: ModelInputs,
    config: EaseWeightsConfig,
    split: FitSplit,
    judge: EvaluationQueries | None,
    device: torch.device = CPU,
) -> ItemWeights:
    """Regress every item on all others.

    Args:
        inputs: The events.
        config: Settings, several of which validation chooses among.
        split: What is fitted on.
        judge: Validation's queries; without any, the first of each setting is taken.
        device: Where the matrix is inverted and settings are measured; a GPU without room for it
            leaves both to the host. The model is on the host.

    Raises:
        ValueError: An ``l2`` is too small for the precision, or the machine for ``exact_items``.
    """
    pairs = CoOccurrence(user_items(inputs, split, config.max_events))
    exact = most_frequent(pairs, config.exact_items)
    place = device if fits_device(len(exact), device) else CPU
    if judge is not None and len(config.l2) > 1:
        part = most_frequent(pairs, min(config.choice_items, config.exact_items))
        shared = shared_users(pairs, part).to(place)
        tried = (
            ease_model(pairs, part, shared.clone(), one, extends=False)
            for one in _each(config, "l2")
        )
        config = replace(config, l2=tuple(_best(tried, judge, place).settings["l2"]))
    check_memory(len(exact))
    model = ease_model(pairs, exact, shared_users(pairs, exact).to(place), config)
    return _best(_by_recency(model), judge, place)


def fit_item_knn(
    inputs: ModelInputs,
    config: ItemKnnConfig,
    split: FitSplit,
    judge: EvaluationQueries | None,
    device: torch.device = CPU,
) -> ItemWeights:
    """Weigh each item's neighbours; the arguments are those of ``fit_ease``."""
    items = user_items(inputs, split, config.max_events)
    if items.times is None:
        config = replace(config, half_life_days=(NO_DECAY,))
    each = _each(config, "length_weight", "half_life_days")
    model = _best((item_knn_model(items, one) for one in each), judge, device)
    return _best(_by_recency(model), judge, device)


def fit_repeats(
    inputs: ModelInputs, config: RepeatsConfig, judge: EvaluationQueries | None
) -> ItemWeights:
    """Choose how fast what a user took before is forgotten; nothing is counted."""
    return _best(_by_recency(repeats_model(inputs.sizes.num_item_rows, config)), judge)


def fit_next_basket(
    inputs: ModelInputs, config: NextBasketConfig, split: FitSplit, judge: EvaluationQueries | None
) -> ItemWeights:
    """Count what follows each item's baskets; the arguments are those of ``fit_ease``.

    Raises:
        ValueError: Events have no times.
    """
    sequences = inputs.sequences
    if sequences.times is None:
        raise ValueError("baskets are events of one time, and these events have none")
    baskets = Baskets.of(
        np.asarray(sequences.item_rows),
        np.asarray(sequences.times),
        np.asarray(sequences.offsets[:-1]),
        np.asarray(sequences.visible_end(split)),
        config.max_basket,
    )
    model = next_basket_model(baskets, inputs.sizes.num_item_rows, config)
    return _best(_by_recency(model), judge)


def _each(config: ConfigT, *names: str) -> list[ConfigT]:
    """List the combinations of settings that are tuples, each as tuples of one."""
    values = product(*(getattr(config, name) for name in names))
    ones: Iterable[dict[str, Any]] = (
        {name: (value,) for name, value in zip(names, some, strict=True)} for some in values
    )
    return [replace(config, **one) for one in ones]


def _by_recency(model: ItemWeights) -> Iterator[ItemWeights]:
    """Read a model's table by each power of the history's recency that its settings name."""
    for power in model.settings["history_power"]:
        settings = {**model.settings, "history_power": (power,)}
        yield ItemWeights(model.table, replace(model.history, power=power), settings)


def _best(
    tried: Iterable[ItemWeights], judge: EvaluationQueries | None, device: torch.device = CPU
) -> ItemWeights:
    """Choose by validation; the first where nothing can be measured, and among equals."""
    models = iter(tried)
    best = next(models)
    if judge is None or not len(judge.held_out.targets.values):
        return best
    top = None
    for model in models:
        top = _quality(best, judge, device) if top is None else top
        if (found := _quality(model, judge, device)) > top:
            best, top = model, found
    return best


def _quality(model: ItemWeights, judge: EvaluationQueries, device: torch.device) -> float:
    source = ScoredSource(model.to(device).score)
    return measure(source, judge, RankingConfig(ks=(10,)), device)[METRIC]


def _spec(name: names.ModelName, config: type, fit: Callable[..., ItemWeights | None]) -> ModelSpec:
    """Make a row of the catalogue; ``fit`` takes events, settings, split, judge and device."""

    def fitted(config: Any, data: Data, until: FitSplit, start: Start, /) -> Fitted[Any] | None:
        return counted(fit(data.inputs, config, until, start.judge, start.run.device))

    return ModelSpec(
        names=name,
        config=config,
        fit=fitted,
        load=lambda folder, _: ItemWeights.load(folder),
        source=weights_source,
        chooses=True,
    )


EASE = _spec(names.EASE, EaseWeightsConfig, fit_ease)
ITEM_KNN = _spec(names.ITEM_KNN, ItemKnnConfig, fit_item_knn)
REPEATS = _spec(
    names.REPEATS,
    RepeatsConfig,
    lambda inputs, config, _, judge, __: fit_repeats(inputs, config, judge),
)
NEXT_BASKET = _spec(
    names.NEXT_BASKET,
    NextBasketConfig,
    lambda inputs, config, split, judge, _: (
        None if inputs.sequences.times is None else fit_next_basket(inputs, config, split, judge)
    ),
)
