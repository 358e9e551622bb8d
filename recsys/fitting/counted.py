"""Fit the models that have no training: they count, compare or solve.

A setting that is a tuple holds what validation chooses among; the power of the recency is chosen
last. The model keeps the chosen ones as tuples of one, so that a refit has nothing to choose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any, TypeVar

import numpy as np
import torch

import recsys.models.names as names
from recsys.data.dataset import FitSplit, Rows
from recsys.fitting.queries import EvaluationQueries, ModelInputs, measure
from recsys.fitting.spec import NOT_TRAINED, Data, Fitted, ModelSpec, Start, vector_source
from recsys.models.configs import (
    ContentSimilarityConfig,
    EaseWeightsConfig,
    ItemToItemConfig,
    NextBasketConfig,
    PopularityConfig,
    RepeatsConfig,
    choices_of,
)
from recsys.models.content_similarity import ContentSimilarity
from recsys.models.item_to_item import item_to_item_model
from recsys.models.item_weights.co_occurrence import CoOccurrence, UserItems
from recsys.models.item_weights.ease import (
    check_memory,
    ease_model,
    fits_device,
    most_frequent,
    shared_users,
)
from recsys.models.item_weights.model import ItemWeights
from recsys.models.item_weights.next_basket import Baskets, next_basket_model, repeats_model
from recsys.models.popularity import Popularity
from recsys.retrieval.sources import PopularSource, ScoredSource, Source, WeightsSource

ConfigT = TypeVar("ConfigT", EaseWeightsConfig, ItemToItemConfig, RepeatsConfig)
ModelT = TypeVar("ModelT", ItemWeights, ContentSimilarity)
CPU = torch.device("cpu")
METRIC = "ndcg@10"
MAX_EVENTS = 500
"""Latest events of a user that EASE reads."""
CHOICE_ITEMS = 3_000
"""Items of the regressions that ``l2`` is chosen by, where there are several."""
CHOICE_USERS, LEAST_USERS, CHOICE_SCORES = 2_000, 200, 40_000_000
"""Validation users that settings are chosen by at most and at least, and scores of all of them."""


def choice_users(num_item_rows: int) -> int:
    """Choose how many validation users settings are chosen by; fewer where there are many items."""
    return min(CHOICE_USERS, max(LEAST_USERS, CHOICE_SCORES // num_item_rows))


def counted(model: Any) -> Fitted[Any] | None:
    """Return a fit that has no training; None without a model."""
    return None if model is None else Fitted(model, NOT_TRAINED, 0)


def popularity_source(model: Popularity, data: Data, scored_up_to: int) -> Source:
    """Rank by popularity."""
    if data.inputs.sizes.num_item_rows <= scored_up_to:
        return ScoredSource(model.score, needs_history=False)
    return PopularSource(model.item_scores)


def weights_source(model: ItemWeights, data: Data, scored_up_to: int) -> Source:
    """Rank by weights between items."""
    if data.inputs.sizes.num_item_rows <= scored_up_to:
        return ScoredSource(model.score)
    return WeightsSource(model)


def user_items(inputs: ModelInputs, split: FitSplit) -> UserItems:
    """Take each user's items that a model may see."""
    sequences = inputs.sequences.positive
    return UserItems.of(
        np.asarray(sequences.item_rows),
        np.asarray(sequences.offsets[:-1]),
        np.asarray(sequences.visible_end(split)),
        inputs.sizes.num_item_rows,
        MAX_EVENTS,
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
        judge: Validation's queries; without any, the first of each setting is taken.
        device: Where the matrix is inverted and settings are measured; a GPU without room for it
            leaves both to the host. The model is on the host.
    """
    pairs = CoOccurrence(user_items(inputs, split))
    exact = most_frequent(pairs, config.exact_items)
    place = device if fits_device(len(exact), device) else CPU
    if judge is not None and len(config.l2) > 1:
        part = most_frequent(pairs, min(CHOICE_ITEMS, config.exact_items))
        shared = shared_users(pairs, part).to(place)
        tried = (
            ease_model(pairs, part, shared.clone(), one, extends=False)
            for one in _each(config, "l2")
        )
        config = replace(config, l2=tuple(_best(tried, judge, place).settings["l2"]))
    check_memory(len(exact))
    model = ease_model(pairs, exact, shared_users(pairs, exact).to(place), config)
    return _best(_by_recency(model), judge, place)


def fit_item_to_item(
    inputs: ModelInputs,
    config: ItemToItemConfig,
    split: FitSplit,
    judge: EvaluationQueries | None,
    device: torch.device = CPU,
) -> ItemWeights:
    """Count which items occur near each other; the arguments are those of ``fit_ease``."""
    sequences = inputs.sequences.positive
    starts, ends = np.asarray(sequences.offsets[:-1]), np.asarray(sequences.visible_end(split))
    rows, num_item_rows = np.asarray(sequences.item_rows), inputs.sizes.num_item_rows
    counted = (
        item_to_item_model(rows, starts, ends, num_item_rows, one)
        for one in _each(config, "distance_power")
    )
    return _best((read for model in counted for read in _by_recency(model)), judge, device)


def fit_repeats(
    inputs: ModelInputs, config: RepeatsConfig, judge: EvaluationQueries | None
) -> ItemWeights:
    """Choose how fast what a user took before is forgotten; nothing is counted."""
    each = _each(config, "history_power", "history_decay")
    return _best((repeats_model(inputs.sizes.num_item_rows, one) for one in each), judge)


def fit_next_basket(
    inputs: ModelInputs, config: NextBasketConfig, split: FitSplit, judge: EvaluationQueries | None
) -> ItemWeights:
    """Count what follows each item's baskets; the arguments are those of ``fit_ease``."""
    sequences = inputs.sequences.positive
    if sequences.times is None:
        raise ValueError("baskets are events of one time, and these events have none")
    baskets = Baskets.of(
        np.asarray(sequences.item_rows),
        np.asarray(sequences.times),
        np.asarray(sequences.offsets[:-1]),
        np.asarray(sequences.visible_end(split)),
    )
    model = next_basket_model(baskets, inputs.sizes.num_item_rows, config)
    return _best(_by_recency(model), judge)


def _each(config: ConfigT, *names: str) -> list[ConfigT]:
    """List the combinations of settings that are tuples, each as tuples of one."""
    values = product(*(choices_of(getattr(config, name)) for name in names))
    ones: Iterable[dict[str, Any]] = (
        {name: (value,) for name, value in zip(names, some, strict=True)} for some in values
    )
    return [replace(config, **one) for one in ones]


def _by_recency(model: ItemWeights) -> Iterator[ItemWeights]:
    """Read a model's table by each power of the history's recency that its settings name."""
    for power in choices_of(model.settings["history_power"]):
        settings = {**model.settings, "history_power": (power,)}
        yield ItemWeights(model.table, replace(model.history, power=power), settings)


def _best(
    tried: Iterable[ModelT], judge: EvaluationQueries | None, device: torch.device = CPU
) -> ModelT:
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


def _quality(
    model: ItemWeights | ContentSimilarity, judge: EvaluationQueries, device: torch.device
) -> float:
    score = model.to(device).score
    source = ScoredSource(lambda queries: score(queries.positive))
    return measure(source, judge, device)[METRIC]


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


ITEM_TO_ITEM = _spec(names.ITEM_TO_ITEM, ItemToItemConfig, fit_item_to_item)
EASE = _spec(names.EASE, EaseWeightsConfig, fit_ease)
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


def fit_popularity(inputs: ModelInputs, config: PopularityConfig, split: FitSplit) -> Popularity:
    """Count each item's events, recent ones more."""
    sequences = inputs.sequences.positive
    ends = sequences.visible_end(split)

    def parts() -> Iterator[tuple[Rows, Rows | None]]:
        for visible in sequences.slices_before(ends):
            times = None if sequences.times is None else np.asarray(sequences.times[visible])
            yield np.asarray(sequences.item_rows[visible]), times

    return Popularity.fit(parts, inputs.sizes.num_item_rows, config)


def fit_content(
    inputs: ModelInputs,
    config: ContentSimilarityConfig,
    judge: EvaluationQueries | None,
    device: torch.device = CPU,
) -> ContentSimilarity | None:
    """Whiten the catalogue's content; None where no item has any."""
    content = inputs.catalogue.content
    if not content.shape[1] or not bool((content[1:] != 0).any()):
        return None
    each = choices_of(config.columns)
    tried = (ContentSimilarity(replace(config, columns=one), content) for one in each)
    return _best(tried, judge, device).to(CPU)


POPULARITY = ModelSpec(
    names=names.POPULARITY,
    config=PopularityConfig,
    fit=lambda config, data, until, _: counted(fit_popularity(data.inputs, config, until)),
    load=lambda folder, _: Popularity.load(folder),
    source=popularity_source,
)
CONTENT = ModelSpec(
    names=names.CONTENT,
    config=ContentSimilarityConfig,
    fit=lambda config, data, _, start: counted(
        fit_content(data.inputs, config, start.judge, start.run.device)
    ),
    load=lambda folder, _: ContentSimilarity.load(folder),
    source=vector_source,
    chooses=True,
)
