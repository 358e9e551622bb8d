"""Columns of the catalogue that are encoded with the text, and images of the items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import polars as pl

from features.tables import kind_of_column
from pipelines.config.content import ContentConfig, ImagesConfig
from pipelines.engine.artifacts import cache_dir, files_under
from pipelines.engine.console import log
from pipelines.inputs.content_models import model_files
from recsys.content.columns import ColumnEncoder, EncodedColumn
from recsys.content.embedding_cache import encode_cached
from recsys.content.image_encoder import ImageEncoder, files_in, missing_as_none


def column_named(items: pl.DataFrame, name: str, setting: str) -> pl.Series:
    """Take a column that a setting names."""
    if name not in items.columns:
        free = sorted(set(items.columns) - {"item_id", "item_row", "display_text"})
        raise ValueError(
            f"{setting}, which the items do not have; there are: {', '.join(free) or 'none'}"
        )
    return items[name]


def fit_columns(
    items: pl.DataFrame, config: ContentConfig, images: Mapping[str, Sequence[Any]]
) -> ColumnEncoder:
    """Look at the catalogue's columns that ``content.columns`` names, and at images' vectors."""
    fitted = []
    for name in config.columns:
        column = column_named(items, name, f"content.columns names {name!r}")
        fitted.append(EncodedColumn.fit(name, kind_of_column(column), column.to_list()))
    fitted += [EncodedColumn.fit(name, "vector", vectors) for name, vectors in images.items()]
    return ColumnEncoder(tuple(fitted), config.column_weight)


def column_values(items: pl.DataFrame, columns: ColumnEncoder) -> dict[str, list[Any]]:
    """Read the values of encoded columns; one that the items lack is missing."""
    names = [one.name for one in columns.columns if one.name in items.columns]
    return {name: items[name].to_list() for name in names}


@lru_cache(maxsize=1)
def image_encoder(path: str) -> ImageEncoder:
    """Load the model once a process."""
    return ImageEncoder(Path(path))


def image_files(config: ContentConfig) -> Mapping[str, Path]:
    """List the model's files and all images: a change of one makes the content again."""
    if config.images is None:
        return {}
    folder = Path(config.images.folder)
    images = {f"content.images/{one.relative_to(folder)}": one for one in files_under(folder)}
    return images | model_files("content.images.encoder", config.images.encoder)


def images_name(config: ContentConfig) -> str:
    """Return the identity of images' vectors; empty where none are read."""
    return "" if config.images is None else image_encoder(config.images.encoder).name


def check_images(config: ContentConfig, made: str, of_what: object) -> None:
    """Refuse another vision model than the one that encoded a bundle's images."""
    if made != (now := images_name(config)):
        raise ValueError(
            f"the images of {of_what} were encoded by {made or 'no model'}, but "
            f"content.images.encoder is now {now or 'not set'}; put the old model back or run the "
            "pipeline again"
        )


def image_vectors(config: ImagesConfig, names: Sequence[Any]) -> list[Any]:
    """Encode the images that items name, [n] vectors of one width, or None."""
    folder = Path(config.folder)
    if not folder.is_dir():
        raise ValueError(f"content.images.folder: there is no folder {folder.absolute()}")
    files, encoder = files_in(folder, names), image_encoder(config.encoder)
    found = encode_cached(encoder.digests(list(files.values())), encoder, cache_dir("images"))
    vectors: list[Any] = [None] * len(names)
    for place, vector in zip(files, missing_as_none(found), strict=True):
        vectors[place] = vector
    named = [place for place, name in enumerate(names) if name is not None and str(name).strip()]
    lost = [place for place in named if vectors[place] is None]
    if lost:
        why = "is no readable image" if lost[0] in files else "is not there"
        log.print(
            f"note: {len(lost):,} of {len(named):,} images are missing, the first: "
            f"{folder / str(names[lost[0]])} {why}",
            style="yellow",
        )
    return vectors


def image_columns(config: ContentConfig, items: pl.DataFrame) -> dict[str, list[Any]]:
    """Encode the images of a catalogue's columns; empty where none are read."""
    if config.images is None:
        return {}
    name = config.images.column
    names = column_named(items, name, f"content.images.column = {name!r}").to_list()
    vectors = image_vectors(config.images, names)
    if all(one is None for one in vectors):
        raise ValueError(
            f"none of the {len(vectors):,} items has an image: column {name} names files below "
            f"{config.images.folder}, the first is {next(filter(None, names), None)!r}"
        )
    return {name: vectors}
