"""Contents of a new bundle, from a run's artefacts; properties of items among them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast, get_args

import numpy as np
import polars as pl

from pipelines.candidates.blends import TEXT_SEARCH, served_blends
from pipelines.engine.artifacts import plain, read_json
from pipelines.engine.console import log
from pipelines.engine.stage import StageContext
from pipelines.inputs.tensors import released_order
from pipelines.ranking.artefact import served_ranker
from pipelines.searching.texts import item_texts
from pipelines.semantic_ids.artefact import read_version
from recsys.fitting.queries import ModelInputs
from recsys.models import names
from recsys.models.text_search.search import TextSearch
from serving.bundle.catalogue import Catalogue
from serving.bundle.item_index import TwoTowerParts
from serving.bundle.manifest import (
    PROPERTY_NAME_PATTERN,
    ContentSource,
    EnrichmentSource,
    PropertyKind,
)
from serving.bundle.properties import Properties, to_unix_seconds
from serving.bundle.semantic_ids import SemanticIdParts
from serving.bundle.users import Users
from serving.bundle.write import BundleParts, OutsideParts
from serving.filtering.compile import RESERVED

ELSEWHERE = frozenset(
    ["item_row", "display_text", "title", "name", "description", "categories", *RESERVED]
)
"""Columns of the catalogue itself, or without use in a filter."""
MAX_TEXTS = 100_000
MAX_LENGTH = 200
NUMBER = r"^[-+]?(0|[1-9]\d*)?(\.\d+)?([eE][-+]?\d+)?$"
"""A text with leading zeros is a code, such as a postcode."""
DAY = r"^\d{4}-\d{2}-\d{2}([T ].*)?$"


def item_properties(items: pl.DataFrame) -> tuple[Properties, dict[str, str]]:
    """Take all columns that can be properties.

    Returns:
        The properties, and why each other column is none.
    """
    kinds: dict[str, PropertyKind] = {}
    left_out: dict[str, str] = {}
    for name in items.columns:
        if name in ELSEWHERE:
            continue
        found = _find_kind(name, items[name])
        if found in get_args(PropertyKind):
            kinds[name] = cast("PropertyKind", found)
        else:
            left_out[name] = found
    values = {name: items[name].to_list() for name in kinds}
    return Properties.of_values(kinds, values), left_out


def _find_kind(name: str, column: pl.Series) -> str:
    """Find a column's kind, or why it has none."""
    if not re.match(PROPERTY_NAME_PATTERN, name):
        return "its name is too long, or has a dot, slash or backtick"
    dtype = column.dtype
    if column.null_count() == len(column):
        return "it is empty"
    if dtype.is_numeric() or dtype == pl.Boolean:
        return "boolean" if dtype == pl.Boolean else "number"
    if dtype in (pl.Date, pl.Datetime):
        return "date"
    inner = dtype.inner if isinstance(dtype, pl.List) else dtype
    if inner in (pl.String, pl.Categorical, pl.Enum) or (inner != dtype and inner.is_integer()):
        return _find_kind_of_texts(column)
    return f"{dtype} is not a kind that filters compare"


def _find_kind_of_texts(column: pl.Series) -> str:
    """Find the kind of texts or of lists of them."""
    listed = isinstance(column.dtype, pl.List)
    texts = column.explode() if listed else column
    texts = texts.cast(pl.String).str.strip_chars().unique().drop_nulls()
    texts = texts.filter(texts != "")
    if len(texts) == 0:
        return "it is empty"
    if not listed and (read := _read_as(texts)) is not None:
        return read
    if len(texts) > MAX_TEXTS:
        return f"it has more than {MAX_TEXTS} distinct texts"
    if (texts.str.len_chars() > MAX_LENGTH).any():
        return f"it has a text of more than {MAX_LENGTH} characters"
    return "list" if listed else "text"


def _read_as(texts: pl.Series) -> PropertyKind | None:
    """Find what all texts are where they are more than texts, as those of a CSV file."""
    if texts.str.contains(NUMBER).all():
        return "number"
    if texts.str.to_lowercase().is_in(["true", "false"]).all():
        return "boolean"
    if texts.str.contains(DAY).all() and _are_dates(texts):
        return "date"
    return None


def _are_dates(texts: pl.Series) -> bool:
    try:
        for text in texts:
            to_unix_seconds(text)
    except (ValueError, OverflowError):
        return False
    return True


def content_source(context: StageContext) -> ContentSource:
    """Describe how items were encoded, so that appended items are encoded equally."""
    config = context.config
    made = read_json(context.inputs["embed_items"] / "content.json")
    enrichment = None
    if made["described_by"] is not None:
        settings = plain(config.enrichment)
        enrichment = EnrichmentSource(settings=settings, **made["described_by"])
    return ContentSource(
        encoder=config.content.encoder,
        text_columns=list(config.content.text_columns),
        settings=plain(config.content),
        table={
            "columns": dict(config.data.item_columns),
            "separator": config.data.separator,
            "list_separator": config.data.list_separator,
        },
        name=made["encoder"],
        columns=made["columns"],
        images=made["images"],
        enrichment=enrichment,
    )


def present(directory: Path) -> Path | None:
    """Return a model's folder, None where the model was not fitted."""
    return directory if directory.exists() else None


def take_properties(items: pl.DataFrame) -> Properties:
    """Take what filters can read of the catalogue, and report what they cannot."""
    found, left_out = item_properties(items)
    for name, why in left_out.items():
        log.print(f"item column {name} cannot be filtered by: {why}", style="dim")
    return found


def text_search(context: StageContext, order: str, items: pl.DataFrame) -> Path | None:
    """Locate the text search, extended to items that came after it was fitted."""
    fitted = present(context.inputs["fit_blend"] / order / TEXT_SEARCH)
    if fitted is None:
        return None
    search = TextSearch.load(fitted)
    more = [text.text for text in item_texts(items)[search.num_item_rows - 1 :]]
    if not more:
        return fitted
    search.grown(more).save(context.output / TEXT_SEARCH)
    return context.output / TEXT_SEARCH


def make_parts(context: StageContext, inputs: ModelInputs) -> BundleParts:
    """Gather what a request needs from the artefacts."""
    features = context.inputs["build_features"]
    items = pl.read_parquet(features / "items.parquet").sort("item_row")
    users = pl.read_parquet(features / "vocabularies" / "users.parquet").sort("row")
    categories = pl.read_parquet(features / "vocabularies" / "categories.parquet").sort("row")
    sequences = inputs.sequences
    semantic_ids, index = context.inputs["build_semantic_ids"], context.inputs["build_index"]
    refit, order = context.inputs["refit"], released_order(features)
    return BundleParts(
        catalogue=Catalogue.from_lists(
            item_ids=items["item_id"].to_list(),
            display_texts=items["display_text"].fill_null("").to_list(),
            category_names=categories["id"].to_list(),
            category_values=inputs.catalogue.categories.values.numpy(),
            category_offsets=inputs.catalogue.categories.offsets.numpy(),
        ),
        properties=take_properties(items),
        users=Users.from_lists(
            user_ids=users["id"].to_list(),
            features=inputs.user_features,
            item_rows=np.asarray(sequences.item_rows),
            offsets=np.asarray(sequences.offsets),
            times=None if sequences.times is None else np.asarray(sequences.times),
        ),
        popularity=refit / names.POPULARITY.name,
        item_weights={name: refit / name for name in names.ITEM_WEIGHTS if (refit / name).exists()},
        content=inputs.catalogue.content.numpy(),
        content_source=content_source(context),
        two_tower=TwoTowerParts(
            model=refit / names.TWO_TOWER.name,
            index=index / "items.faiss",
            item_vectors=np.load(index / "item_vectors.npy", allow_pickle=False),
        )
        if (refit / names.TWO_TOWER.name).exists()
        else None,
        semantic_ids=SemanticIdParts(directory=semantic_ids)
        if read_version(semantic_ids)
        else None,
        content_similarity=present(refit / names.CONTENT.name),
        sequence=present(refit / names.SEQUENCE.name),
        ensemble=present(refit / names.ENSEMBLE.name),
        generative=present(refit / names.GENERATIVE.name),
        outside={
            name: OutsideParts(refit / name, address)
            for name, address in context.config.outside_models().items()
            if (refit / name).exists()
        },
        blends=served_blends(context.inputs["fit_blend"] / order),
        ranker=served_ranker(context.inputs["train_ranker"] / order),
        text_search=text_search(context, order, items),
        user_features=inputs.sizes.user_features,
        context_features=inputs.sizes.context_features,
        exclude_history=context.config.evaluation.exclude_history,
    )
