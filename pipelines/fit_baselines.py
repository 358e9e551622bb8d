"""Stage fit_baselines: popularity and item-to-item on the events before the held-out ones."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from pipelines.config import RunConfig
from pipelines.model_inputs import ModelInputs, tie_orders
from pipelines.stage import StageContext, StageRows
from recsys.data.dataset import Sequences, concatenated_ranges
from recsys.models.item_to_item import ItemToItem
from recsys.models.popularity import Popularity


def fit_models(
    sequences: Sequences, num_item_rows: int, config: RunConfig, split: Literal["train", "all"]
) -> tuple[Popularity, ItemToItem]:
    """Fit both models on what a model of ``split`` may see."""
    starts, ends = sequences.offsets[:-1], sequences.visible_end(split)
    visible = concatenated_ranges(starts, ends)
    rows = np.asarray(sequences.item_rows[visible])
    times = None if sequences.times is None else np.asarray(sequences.times[visible])
    popularity = Popularity.fit(rows, times, num_item_rows, config.popularity)
    item_to_item = ItemToItem.fit(
        np.asarray(sequences.item_rows), starts, ends, num_item_rows, config.item_to_item
    )
    return popularity, item_to_item


def save_models(models: tuple[Popularity, ItemToItem], directory: Path) -> None:
    """Write each model into its folder."""
    popularity, item_to_item = models
    popularity.save(directory / "popularity")
    item_to_item.save(directory / "item_to_item")


def fit_baselines(context: StageContext) -> StageRows:
    """Fit both models once for each order of tied times."""
    features = context.inputs["build_features"]
    num_events = 0
    for order in tie_orders(context.inputs["build_features"]):
        inputs = ModelInputs.load(features, None, order)
        models = fit_models(inputs.sequences, inputs.sizes.num_item_rows, context.config, "train")
        save_models(models, context.output / order)
        num_events += int(
            (inputs.sequences.visible_end("train") - inputs.sequences.offsets[:-1]).sum()
        )
    return StageRows(rows_in=num_events, rows_out=inputs.sizes.num_item_rows - 1)
