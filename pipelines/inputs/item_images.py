"""Images of the items, as the catalogue names them: a column of vectors for the models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import polars as pl

from pipelines.config.content import ContentConfig, ImagesConfig
from pipelines.engine.artifacts import files_under
from pipelines.engine.console import log
from pipelines.inputs.content_models import cache_dir, model_files
from pipelines.inputs.item_columns import column_named
from recsys.content.embedding_cache import encode_cached
from recsys.content.image_encoder import ImageEncoder, files_in, missing_as_none


@lru_cache(maxsize=1)
def image_encoder(path: str) -> ImageEncoder:
    """Load the model once a process."""
    return ImageEncoder(Path(path))


def image_files(config: ContentConfig) -> Mapping[str, Path]:
    """Name the model's files and all images: a change of one makes content anew."""
    if config.images is None:
        return {}
    folder = Path(config.images.folder)
    images = {f"content.images/{one.relative_to(folder)}": one for one in files_under(folder)}
    return images | model_files("content.images.encoder", config.images.encoder)


def images_name(config: ContentConfig) -> str:
    """Return the identity of images' vectors; empty where none are read."""
    return "" if config.images is None else image_encoder(config.images.encoder).name


def check_images(config: ContentConfig, made: str, of_what: object) -> None:
    """Refuse another vision model than the one that encoded a bundle's images.

    Raises:
        ValueError: If the model changed since the release.
    """
    if made != (now := images_name(config)):
        raise ValueError(
            f"the images of {of_what} were encoded by {made or 'no model'}, but "
            f"content.images.encoder is now {now or 'not set'}; put the old model back or run the "
            "pipeline again"
        )


def image_vectors(config: ImagesConfig, names: Sequence[Any]) -> list[Any]:
    """Encode the images that items name, [n] vectors of one width; None where there is none.

    Args:
        config: Where images lie, and the model.
        names: Files below the folder, None or empty for an item without.

    Raises:
        ValueError: The folder or model is not there, a name leads out of the folder, or there is
            no image at all.
    """
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
    """Encode the images of a catalogue's columns; empty where none are read.

    Raises:
        ValueError: There is no such column, or no image at all.
    """
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
