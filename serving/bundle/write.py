"""Write a bundle: what it is made of, copied into one directory, whole or not at all."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from recsys.data.durable import new_directory
from recsys.models.item_tower import ItemCatalogue
from serving.bundle.catalogue import Catalogue
from serving.bundle.history_models import (
    CONTENT_SIMILARITY,
    ENSEMBLE,
    GENERATIVE,
    drop_item_vectors,
)
from serving.bundle.item_index import TwoTowerParts, write_indexes, write_two_tower
from serving.bundle.items import CONTENT, WORDS, Vectors, known_categories
from serving.bundle.load import load_bundle
from serving.bundle.manifest import (
    VERSION_PATTERN,
    ContentSource,
    Dimensions,
    bundle_directory,
    seal,
)
from serving.bundle.properties import NO_PROPERTIES, Properties
from serving.bundle.semantic_ids import ItemSemanticIds, copy_semantic_ids
from serving.bundle.users import Users


@dataclass(frozen=True, kw_only=True)
class BundleParts:
    """Parts of a bundle; row counts must agree."""

    catalogue: Catalogue
    users: Users
    properties: Properties = NO_PROPERTIES
    """Properties that filters and rules may read, besides categories."""
    models: Mapping[str, Path]
    """Directories that models, rankers and blends were saved to, by their name in the bundle."""
    specs: Mapping[str, str] = field(default_factory=dict)
    """Addresses of the rows of other packages' models, by name."""
    content: Vectors | None = None
    """Content embeddings, [N, F]; None for none. Every model reads them from here."""
    words: Path | None = None
    """File of how the content's words were encoded; None without words."""
    content_source: ContentSource | None = None
    """How the content was made; without it no items can be appended."""
    two_tower: TwoTowerParts | None = None
    """What a two-tower has besides its model."""
    semantic_ids: Path | None = None
    """Directory that the IDs are copied from."""
    user_features: Mapping[str, int] = field(default_factory=dict)
    """Cardinality of each of users.features."""
    context_features: Mapping[str, int] = field(default_factory=dict)
    event_types: Sequence[str] = ()
    """Types of the rows in users.types, from 1."""
    exclude_history: bool = True
    """True if lists were evaluated without the history, and so are served."""


def write_bundle(
    bundles_dir: Path,
    parts: BundleParts,
    *,
    version: str,
    metrics: Mapping[str, Mapping[str, float]] | None = None,
    config_digest: str = "",
) -> Path:
    """Write ``bundle-<version>`` whole or not at all, and load it once to prove it.

    Args:
        bundles_dir: Holds all versions and ``current``; made where it is missing.
        version: Letters, digits, dot, dash, underscore; never reused.
        metrics: Test metrics by model name, finite.
    """
    if "+" in version or not re.fullmatch(VERSION_PATTERN, version):
        raise ValueError(
            f"version {version!r} of a bundle must be a letter or digit, then at most 63 letters, "
            "digits, dots, dashes and underscores (a plus is for deltas, see write_delta)"
        )
    final = bundle_directory(bundles_dir, version)
    with new_directory(final) as directory:
        parts.catalogue.save(directory)
        parts.properties.save(directory)
        parts.users.save(directory)
        items = _items(parts)
        (directory / CONTENT).parent.mkdir()
        np.save(directory / CONTENT, items.content.numpy())
        if parts.words is not None:
            shutil.copyfile(parts.words, directory / WORDS)
        _write_models(parts, directory)
        indexed = write_indexes(directory, items, parts.users)
        if parts.semantic_ids is not None:
            copy_semantic_ids(parts.semantic_ids, directory)
        seal(
            directory,
            kind="bundle",
            version=version,
            profile="full" if {GENERATIVE, ENSEMBLE} & parts.models.keys() else "fast",
            dimensions=Dimensions(
                num_item_rows=parts.catalogue.num_item_rows,
                num_user_rows=parts.users.num_user_rows,
                num_category_rows=parts.catalogue.num_category_rows,
                num_events=len(parts.users.item_rows),
                embedding_dim=parts.two_tower.item_vectors.shape[1] if parts.two_tower else 0,
            ),
            user_features=dict(parts.user_features),
            context_features=dict(parts.context_features),
            event_types=list(parts.event_types),
            properties=parts.properties.kinds,
            models=list(parts.models),
            specs=dict(parts.specs),
            metrics={name: dict(values) for name, values in (metrics or {}).items()} | indexed,
            config_digest=config_digest,
            content=parts.content_source,
            exclude_history=parts.exclude_history,
            semantic_ids=ItemSemanticIds.load(directory).source if parts.semantic_ids else None,
        )
        load_bundle(directory)
    return final


def _write_models(parts: BundleParts, directory: Path) -> None:
    """Copy fitted models into a bundle that is being written."""
    for name, source in parts.models.items():
        copy_model(source, directory / name)
    if parts.two_tower is not None:
        write_two_tower(parts.two_tower, directory)
    if CONTENT_SIMILARITY in parts.models:
        drop_item_vectors(directory / CONTENT_SIMILARITY)


def _items(parts: BundleParts) -> ItemCatalogue:
    num_item_rows = parts.catalogue.num_item_rows
    content = np.zeros((num_item_rows, 0), np.float32) if parts.content is None else parts.content
    categories = known_categories(parts.catalogue, parts.catalogue.num_category_rows)
    return ItemCatalogue(torch.from_numpy(np.asarray(content, np.float32)), categories)


def copy_model(source: Path, target: Path) -> None:
    """Copy the regular files of a model's directory."""
    if not source.is_dir():
        raise ValueError(f"{source} is not the directory of a saved model; run its stage first")
    target.mkdir()
    for path in sorted(source.iterdir()):
        if path.is_file():
            shutil.copyfile(path, target / path.name)
