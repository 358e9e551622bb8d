"""Append new items to a released bundle as a delta, without training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from features.scan import read_whole, scan_file
from features.schema import SourceConfig
from pipelines.config.content import ContentConfig, EnrichItemsConfig
from pipelines.config.toml import validate, without_keys
from pipelines.engine.console import log
from pipelines.engine.workspace import publishing
from pipelines.inputs.content_models import (
    cache_dir,
    describe_item,
    make_encoder,
    make_language_model,
)
from pipelines.inputs.item_columns import check_images, image_vectors
from pipelines.inputs.opened_store import opened
from pipelines.publishing.promotion import note_champion, served_version
from pipelines.semantic_ids.append import published_ids
from recsys.content.attribute_schema import build_extraction
from recsys.content.attributes import enriched_text
from recsys.content.columns import ColumnEncoder
from recsys.content.embedding_cache import encode_cached
from recsys.content.encoder import Encoder
from recsys.content.enrichment import enrich
from recsys.content.prompt import EndpointError
from recsys.data.batch import Jagged, JaggedBatch
from serving.bundle.delta import NewItem, write_delta
from serving.bundle.load import Bundle, load_bundle
from serving.bundle.manifest import CURRENT, read_manifest
from serving.online.opening import is_store

Vectors = NDArray[np.float32]
CATEGORY_SEPARATOR = "|"


def read_items(source: SourceConfig) -> pl.DataFrame:
    """Read new items; a ValueError names the file, the column or the row at fault."""
    path = source.paths[0]
    present = scan_file(path, source).collect_schema().names()
    # A file of new items may lack any column but the id.
    columns = {
        ours: theirs
        for ours, theirs in source.columns.items()
        if theirs in ("", *present) or (ours == "item_id" and ours not in present)
    }
    items = read_whole(path, replace(source, columns=columns), ("item_id",))
    items = items.with_columns(pl.col("item_id").cast(pl.String))
    if items["item_id"].null_count() or (items["item_id"] == "").any():
        row = (items["item_id"].is_null() | (items["item_id"] == "")).arg_max()
        raise ValueError(f"{path}, row {row}: item_id is empty; give every item an id")
    if items["item_id"].is_duplicated().any():
        twice = items.filter(pl.col("item_id").is_duplicated())["item_id"][0]
        raise ValueError(f"{path} names item_id {twice!r} more than once; keep one row of it")
    if items.schema.get("categories") == pl.String:
        items = items.with_columns(pl.col("categories").str.split(source.list_separator))
    return items


def as_list(value: object) -> object:
    """Split a text with separators, such as ``categories``, into a list."""
    return value.split(CATEGORY_SEPARATOR) if isinstance(value, str) else value


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


def check_encoder(encoder: Encoder, bundle: Bundle, directory: Path) -> None:
    """Refuse another encoder than the bundle's: ValueError."""
    made = bundle.manifest.content
    assert made is not None
    if made.name and made.name != encoder.name:
        raise ValueError(
            f"{directory} was encoded by {made.name}, but {made.encoder} is now {encoder.name}; "
            "put the old model back or run the pipeline again"
        )


def described(texts: list[str], bundle: Bundle, directory: Path) -> list[str]:
    """Enrich each text by the language model, if the bundle's items were enriched.

    Raises:
        ValueError: If that model is missing, has changed, or does not answer.
    """
    assert bundle.manifest.content is not None
    made = bundle.manifest.content.enrichment
    if made is None or made.kept == []:
        return texts
    before = f"the items of {directory} were described by {made.model} before they were encoded"
    # Bundles of earlier versions name a device and a gate.
    settings = without_keys(made.settings, ["device", "gate"])
    config = validate(EnrichItemsConfig, settings, f"{directory}/manifest.json enrichment")
    extraction = build_extraction(config.attributes)
    keep = extraction.keep if made.kept is None else made.kept
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
            f"{before}, new ones must be too, and it is not available: {error}. Put the "
            "model back, or run the pipeline again with the new items in the catalogue"
        ) from error
    if missing := sum(one is None for one in result.attributes):
        why = next(reason for reason in result.reasons if reason)
        log.print(
            f"note: {missing} of {len(texts)} items are not described ({why}); only their own "
            "text is encoded",
            style="yellow",
        )
    known = [
        {name: value.value for name, value in (one or {}).items()} for one in result.attributes
    ]
    pairs = zip(texts, known, strict=True)
    return [enriched_text(*one, keep=keep, schema=extraction.schema) for one in pairs]


def encode_items(
    rows: list[dict[str, Any]], config: ContentConfig, bundle: Bundle, directory: Path
) -> Vectors:
    """Encode new catalogue rows as the bundle's were, [R, F]; F = 0 where nothing is encoded."""
    assert bundle.manifest.content is not None
    columns = ColumnEncoder.of(bundle.manifest.content.columns, config.column_weight)
    table = {one.name: [row.get(one.name) for row in rows] for one in columns.columns}
    if config.images is not None:
        check_images(config, bundle.manifest.content.images, directory)
        table[config.images.column] = image_vectors(config.images, table[config.images.column])
    of_columns = columns.encode(table, len(rows))
    encoder = make_encoder(config)
    if encoder is None:
        return of_columns
    check_encoder(encoder, bundle, directory)
    texts = described([describe_item(row, config) for row in rows], bundle, directory)
    return np.hstack([encode_cached(texts, encoder, cache_dir("embeddings")), of_columns])


def items_of_store(url: str, bundle: Bundle) -> pl.DataFrame:
    """Read the items that clients have described (``POST /v1/items``) and the bundle lacks.

    Raises:
        ValueError: The store cannot be read, or holds no such item.
    """
    with opened(url) as store:
        changed = store.items()[1]
    rows = [
        {"item_id": item_id, **state.properties}
        for item_id, state in sorted(changed.items())
        if state.properties and bundle.catalogue.row_of(item_id) is None
    ]
    if not rows:
        raise NothingNewError(f"{url} describes no item that the bundle lacks")
    texts = [
        {**row, "categories": as_list(row["categories"])} if "categories" in row else row
        for row in rows
    ]
    return pl.DataFrame(texts, infer_schema_length=None, strict=False)


class NothingNewError(ValueError):
    """There is no new item."""


class MovedError(ValueError):
    """Another bundle was published while the new items were encoded."""


def new_item(row: Mapping[str, Any], bundle: Bundle) -> NewItem:
    """Build an item from its row, with the properties that the bundle has."""
    return NewItem(
        item_id=row["item_id"],
        display_text=str(row.get("title") or row.get("description") or row["item_id"]),
        categories=[name for name in row.get("categories") or [] if name],
        properties={
            name: as_list(row.get(name)) if kind == "list" else row.get(name)
            for name, kind in bundle.properties.kinds.items()
        },
    )


def append(
    source: str | Path,
    bundle_path: Path,
    *,
    publish_it: bool,
    published: Callable[[Path, str], object] = lambda bundles, version: None,
) -> tuple[Path, int]:
    """Write and publish a delta with the items of a file, or of an online store.

    Returns:
        The delta's directory and its number of items.

    Raises:
        NothingNewError: The store has nothing that the bundle lacks.
        MovedError: Another bundle was published meanwhile.
        UnreadableStoreError: The store does not answer.
        WorkspaceBusyError: Another publisher is at work.
        ValueError: If the file is at fault, an item is known already, or nothing in the bundle
            would find new items.
    """
    directory = bundle_path.resolve()
    bundles, served = directory.parent, served_version(directory.parent)
    bundle = load_bundle(directory)
    if is_store(str(source)):
        items = items_of_store(str(source), bundle)
    else:
        table = {} if bundle.manifest.content is None else bundle.manifest.content.table
        fields = {**table, "paths": [str(source)]}
        items = read_items(validate(SourceConfig, fields, f"{directory}/manifest.json"))
    config = content_config(bundle, directory)
    if known := [one for one in items["item_id"] if bundle.catalogue.row_of(one)]:
        raise ValueError(
            f"{source}: {len(known)} items are in the bundle already, the first is {known[0]!r}; "
            "leave them out, the next run updates them"
        )
    rows = list(items.iter_rows(named=True))
    content = encode_items(rows, config, bundle, directory)
    new = [new_item(row, bundle) for row in rows]
    vectors = item_vectors(bundle, new, content)
    with publishing(bundles):
        if publish_it and (now := served_version(bundles)) != served:
            raise MovedError(
                f"while the new items were encoded, {bundles / CURRENT} moved from bundle-{served} "
                f"to bundle-{now}; nothing was written. Run the command again"
            )
        ids = None
        if bundle.semantic_ids is not None:
            ids = published_ids(bundle, bundles, items["item_id"].to_list(), content)
        delta = write_delta(
            bundles,
            bundle.version,
            new,
            content=content,
            item_vectors=vectors,
            semantic_ids=ids,
        )
        version = read_manifest(delta)[0].version
        if publish_it:
            words = [f"{len(new)} items were appended."]
            note_champion(bundles, version, "append", words=words)
    if publish_it:
        published(bundles, version)
    return delta, len(new)


def item_vectors(bundle: Bundle, items: list[NewItem], content: Vectors) -> Vectors | None:
    """Encode new items by content and the categories that the two-tower knows, [R, D].

    None without a two-tower.
    """
    if bundle.retriever is None:
        return None
    names = bundle.catalogue.category_names
    trained = bundle.retriever.model.inputs.num_categories
    found = [[names.row_of(name) or 0 for name in item.categories] for item in items]
    categories = Jagged.from_lists([[row for row in rows if 0 < row < trained] for rows in found])
    batch = JaggedBatch(
        {
            "item": Jagged.one_each(torch.zeros(len(items), dtype=torch.int64)),
            "item.categories": categories,
        }
    )
    with torch.inference_mode():
        vectors = bundle.retriever.model.item_vectors(batch, torch.from_numpy(content))
    encoded: Vectors = vectors.numpy()
    return encoded
