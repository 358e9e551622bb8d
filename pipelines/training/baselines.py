"""TODO-DOC."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np

from pipelines.candidates.sources import CONTENT
from pipelines.config.run import RunConfig
from recsys.data.dataset import concatenated_ranges
from recsys.fitting.inputs import ModelInputs
from recsys.models.content_similarity import ContentSimilarity
from recsys.models.item_to_item import ItemToItem
from recsys.models.popularity import Popularity

Baseline = Popularity | ItemToItem | ContentSimilarity


def fit_models(
    inputs: ModelInputs, config: RunConfig, split: Literal["train", "all"]
) -> dict[str, Baseline]:
    """Fit the models on what a model of ``split`` may see, by the name of their folder."""
    sequences, num_item_rows = inputs.sequences, inputs.sizes.num_item_rows
    starts, ends = sequences.offsets[:-1], sequences.visible_end(split)
    visible = concatenated_ranges(starts, ends)
    rows = np.asarray(sequences.item_rows[visible])
    times = None if sequences.times is None else np.asarray(sequences.times[visible])
    models: dict[str, Baseline] = {
        "popularity": Popularity.fit(rows, times, num_item_rows, config.popularity),
        "item_to_item": ItemToItem.fit(
            np.asarray(sequences.item_rows), starts, ends, num_item_rows, config.item_to_item
        ),
    }
    content = inputs.catalogue.content
    if content.shape[1] and bool((content[1:] != 0).any()):
        models[CONTENT] = ContentSimilarity(config.content_similarity, content)
    return models


def save_models(models: Mapping[str, Baseline], directory: Path) -> None:
    """Write each model into its folder."""
    for name, model in models.items():
        model.save(directory / name)
