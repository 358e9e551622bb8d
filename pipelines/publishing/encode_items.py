"""Encode new items as the items of a released bundle were encoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipelines.config.content import ContentConfig
from pipelines.config.toml import validate
from pipelines.inputs.content_models import (
    describe_item,
    encode_texts,
    make_encoder,
    name_vectors,
    read_words,
)
from recsys.content.columns import ColumnEncoder
from recsys.data.batch import Jagged, JaggedBatch
from serving.bundle.delta import NewItem
from serving.bundle.items import WORDS
from serving.bundle.load import Bundle

Vectors = NDArray[np.float32]


def content_config(bundle: Bundle, directory: Path) -> ContentConfig:
    """Return how the bundle's items were encoded; ValueError if nothing would find new items."""
    if bundle.retriever is None and not bundle.items.content.shape[1]:
        raise ValueError(
            f"{directory} has neither a two-tower nor content embeddings, so nothing in it would "
            "find new items; run again with a longer --budget, or the new items in the catalogue"
        )
    made = bundle.manifest.content
    if made is None:
        raise ValueError(
            f"{directory} does not record the encoder of its content embeddings; release it again"
        )
    if made.enrichment is not None:
        raise ValueError(
            f"the items of {directory} were described by {made.enrichment.model} before they were "
            "encoded; run the pipeline again with the new items in the catalogue"
        )
    fields = made.settings or {"encoder": made.encoder, "text_columns": made.text_columns}
    return validate(ContentConfig, fields, f"{directory}/manifest.json content")


def encode_items(
    rows: list[dict[str, Any]], config: ContentConfig, bundle: Bundle, directory: Path
) -> Vectors:
    """Encode new catalogue rows as the bundle's were, [R, F]; F = 0 where nothing is encoded."""
    made = bundle.manifest.content
    assert made is not None
    columns = ColumnEncoder.of(made.columns, config.column_weight)
    table = {one.name: [row.get(one.name) for row in rows] for one in columns.columns}
    of_columns = columns.encode(table, len(rows))
    encoder = make_encoder(config)
    if encoder is None:
        return of_columns
    words = read_words(config, bundle.directory / WORDS)
    name = name_vectors(encoder, words)
    if made.name and made.name != name:
        raise ValueError(
            f"{directory} was encoded by {made.name}, but {made.encoder} is now {name}; "
            "put the old model back or run the pipeline again"
        )
    texts = [describe_item(row, config) for row in rows]
    return np.hstack([encode_texts(texts, encoder, words), of_columns])


def item_vectors(bundle: Bundle, items: list[NewItem], content: Vectors) -> Vectors | None:
    """Encode new items by content and the categories that the two-tower knows, [R, D].

    None without a two-tower.
    """
    if bundle.retriever is None:
        return None
    names, model = bundle.catalogue.category_names, bundle.retriever.model
    found = [[names.row_of(name) or 0 for name in item.categories] for item in items]
    known = [[row for row in rows if 0 < row < model.inputs.num_categories] for rows in found]
    item_rows = Jagged.one_each(torch.zeros(len(items), dtype=torch.int64))
    batch = JaggedBatch({"item": item_rows, "item.categories": Jagged.from_lists(known)})
    with torch.inference_mode():
        encoded: Vectors = model.item_vectors(batch, torch.from_numpy(content)).numpy()
    return encoded
