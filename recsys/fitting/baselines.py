"""Fit the models that count or compare and have no training.

Axes: N item rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from recsys.data.dataset import FitSplit, Rows
from recsys.fitting.inputs import ModelInputs
from recsys.fitting.sources import popularity_source, vector_source, weights_source
from recsys.fitting.spec import ModelSpec, counted
from recsys.models import names
from recsys.models.content_similarity import ContentSimilarity, ContentSimilarityConfig
from recsys.models.item_to_item import ItemToItem, ItemToItemConfig
from recsys.models.item_weights.model import ItemWeights
from recsys.models.popularity import Popularity, PopularityConfig


def fit_popularity(inputs: ModelInputs, config: PopularityConfig, split: FitSplit) -> Popularity:
    """Count each item's events, recent ones more."""
    sequences = inputs.sequences
    ends = sequences.visible_end(split)

    def parts() -> Iterator[tuple[Rows, Rows | None]]:
        for visible in sequences.slices_before(ends):
            times = None if sequences.times is None else np.asarray(sequences.times[visible])
            yield np.asarray(sequences.item_rows[visible]), times

    return Popularity.fit_parts(parts, inputs.sizes.num_item_rows, config)


def fit_item_to_item(inputs: ModelInputs, config: ItemToItemConfig, split: FitSplit) -> ItemToItem:
    """Count which items occur near each other."""
    sequences = inputs.sequences
    return ItemToItem.fit(
        np.asarray(sequences.item_rows),
        np.asarray(sequences.offsets[:-1]),
        np.asarray(sequences.visible_end(split)),
        inputs.sizes.num_item_rows,
        config,
    )


def fit_content(inputs: ModelInputs, config: ContentSimilarityConfig) -> ContentSimilarity | None:
    """Whiten the catalogue's content; None where no item has any."""
    content = inputs.catalogue.content
    if content.shape[1] and bool((content[1:] != 0).any()):
        return ContentSimilarity(config, content)
    return None


POPULARITY = ModelSpec(
    names=names.POPULARITY,
    config=PopularityConfig,
    fit=lambda config, data, until, _: counted(fit_popularity(data.inputs, config, until)),
    load=lambda folder, _: Popularity.load(folder),
    source=popularity_source,
)
ITEM_TO_ITEM = ModelSpec(
    names=names.ITEM_TO_ITEM,
    config=ItemToItemConfig,
    fit=lambda config, data, until, _: counted(fit_item_to_item(data.inputs, config, until)),
    load=lambda folder, _: ItemWeights.load(folder),
    source=weights_source,
)
CONTENT = ModelSpec(
    names=names.CONTENT,
    config=ContentSimilarityConfig,
    fit=lambda config, data, *_: counted(fit_content(data.inputs, config)),
    load=lambda folder, _: ContentSimilarity.load(folder),
    source=vector_source,
)
