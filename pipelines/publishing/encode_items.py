"""Encode new items as the items of a released bundle were encoded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipelines.config.content import ContentConfig, EnrichItemsConfig
from pipelines.config.toml import validate, without_keys
from pipelines.engine.console import log
from pipelines.inputs.content_models import (
    cache_dir,
    describe_item,
    make_encoder,
    make_language_model,
)
from pipelines.inputs.item_columns import check_images, image_vectors
from recsys.content.attribute_schema import build_extraction
from recsys.content.attributes import enriched_text
from recsys.content.columns import ColumnEncoder
from recsys.content.embedding_cache import encode_cached
from recsys.content.enrichment import enrich
from recsys.content.prompt import EndpointError
from recsys.data.batch import Jagged, JaggedBatch
from serving.bundle.delta import NewItem
from serving.bundle.load import Bundle

Vectors = NDArray[np.float32]


def content_config(bundle: Bundle, directory: Path) -> ContentConfig:
    """Return how the bundle's items were encoded; ValueError if nothing would find new items."""
    if bundle.retriever is None and not bundle.items.content.shape[1]:
        raise ValueError(
            f"{directory} has neither a two-tower nor content embeddings, so nothing in it would "
            "find new items; run the pipeline again with the new items in the catalogue"
        )
    made = bundle.manifest.content
    if made is None:
        raise ValueError(
            f"{directory} does not record the encoder of its content embeddings; release it again"
        )
    fields = made.settings or {"encoder": made.encoder, "text_columns": made.text_columns}
    return validate(ContentConfig, fields, f"{directory}/manifest.json content")


def described(texts: list[str], bundle: Bundle, directory: Path) -> list[str]:
    """Enrich each text by the language model, if the bundle's items were enriched.

    Raises:
        ValueError: If that model is missing, has changed, or does not answer.
    """
    assert bundle.manifest.content is not None
    made = bundle.manifest.content.enrichment
    if made is None or made.kept == []:
        return texts
    # Bundles of earlier versions name a device and a gate.
    settings = without_keys(made.settings, ["device", "gate"])
    config = validate(EnrichItemsConfig, settings, f"{directory}/manifest.json enrichment")
    extraction = build_extraction(config.attributes)
    try:
        model = make_language_model(config)
        if model is None or model.name != made.model:
            found = "no model" if model is None else model.name
            raise ValueError(f"{config.model} is now {found}")
        if made.prompt_version != extraction.version:
            raise ValueError(
                f"with prompt {made.prompt_version}, this version has prompt {extraction.version}"
            )
        # Fail at the first request without an answer: a delta is easily made again.
        strict = replace(config, max_unreachable=1)
        result = enrich(texts, model, cache_dir("enrichment"), strict)
    except (EndpointError, ImportError, ValueError) as error:
        raise ValueError(
            f"the items of {directory} were described by {made.model} before they were encoded, "
            f"new ones must be too, and it is not available: {error}. Put the "
            "model back, or run the pipeline again with the new items in the catalogue"
        ) from error
    if missing := sum(one is None for one in result.attributes):
        why = next(reason for reason in result.reasons if reason)
        log.print(
            f"note: {missing} of {len(texts)} items are not described ({why}); only their own "
            "text is encoded",
            style="yellow",
        )
    keep = extraction.keep if made.kept is None else made.kept
    known = [
        {name: value.value for name, value in (one or {}).items()} for one in result.attributes
    ]
    pairs = zip(texts, known, strict=True)
    return [enriched_text(*one, keep=keep, schema=extraction.schema) for one in pairs]


def encode_items(
    rows: list[dict[str, Any]], config: ContentConfig, bundle: Bundle, directory: Path
) -> Vectors:
    """Encode new catalogue rows as the bundle's were, [R, F]; F = 0 where nothing is encoded."""
    made = bundle.manifest.content
    assert made is not None
    columns = ColumnEncoder.of(made.columns, config.column_weight)
    table = {one.name: [row.get(one.name) for row in rows] for one in columns.columns}
    if config.images is not None:
        check_images(config, made.images, directory)
        table[config.images.column] = image_vectors(config.images, table[config.images.column])
    of_columns = columns.encode(table, len(rows))
    encoder = make_encoder(config)
    if encoder is None:
        return of_columns
    if made.name and made.name != encoder.name:
        raise ValueError(
            f"{directory} was encoded by {made.name}, but {made.encoder} is now {encoder.name}; "
            "put the old model back or run the pipeline again"
        )
    texts = described([describe_item(row, config) for row in rows], bundle, directory)
    return np.hstack([encode_cached(texts, encoder, cache_dir("embeddings")), of_columns])


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
