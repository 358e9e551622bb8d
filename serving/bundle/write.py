"""Write a bundle: what it is made of, copied into one directory, whole or not at all."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from recsys.data.durable import new_directory
from recsys.models.item_tower import ItemCatalogue
from recsys.models.names import POPULARITY, TWO_TOWER
from serving.bundle.catalogue import Catalogue
from serving.bundle.history_models import (
    BLENDS,
    CONTENT_SIMILARITY,
    ENSEMBLE,
    GENERATIVE,
    SEQUENCE,
    drop_item_vectors,
)
from serving.bundle.item_index import TwoTowerParts, write_indexes, write_two_tower
from serving.bundle.items import TEXT_SEARCH, Vectors, known_categories, write_content
from serving.bundle.load import load_bundle
from serving.bundle.manifest import (
    VERSION_PATTERN,
    ContentSource,
    Dimensions,
    Profile,
    bundle_directory,
    seal,
)
from serving.bundle.properties import NO_PROPERTIES, Properties
from serving.bundle.ranker import RANKER
from serving.bundle.semantic_ids import ItemSemanticIds, copy_semantic_ids
from serving.bundle.users import Users


class OutsideParts(NamedTuple):
    """A fitted model of another package."""

    model: Path
    """Directory that its ``save`` wrote."""
    spec: str
    """Address of its row of the catalogue."""


@dataclass(frozen=True, kw_only=True)
class BundleParts:
    """Parts of a bundle; row counts must agree."""

    catalogue: Catalogue
    users: Users
    properties: Properties = NO_PROPERTIES
    """Properties that filters and rules may read, besides categories."""
    popularity: Path
    """Directory that Popularity.save wrote."""
    item_weights: Mapping[str, Path] = field(default_factory=dict)
    """Directories that ItemWeights.save wrote, by model."""
    content: Vectors | None = None
    """Content embeddings, [N, F]; None for none. Every model reads them from here."""
    content_source: ContentSource | None = None
    """How the content was made; without it no items can be appended."""
    two_tower: TwoTowerParts | None = None
    semantic_ids: Path | None = None
    """Directory that the IDs are copied from."""
    content_similarity: Path | None = None
    """Directory that ContentSimilarity.save wrote, of ``content``."""
    sequence: Path | None = None
    """Directory that SequenceModel.save wrote, over ``content`` and the catalogue."""
    ensemble: Path | None = None
    """The same with all members, where profile ``fast`` queries the first ones alone."""
    generative: Path | None = None
    """Directory that GenerativeModel.save wrote, over the catalogue and ``semantic_ids``."""
    outside: Mapping[str, OutsideParts] = field(default_factory=dict)
    """Models of other packages, by name."""
    blends: Mapping[Profile, Path] = field(default_factory=dict)
    """Directories that LearnedBlend.save wrote, by the profile whose ``home`` each one ranks."""
    ranker: Path | None = None
    """Directory of train_ranker: what Ranker.save wrote, and how many candidates it orders."""
    text_search: Path | None = None
    """Directory that TextSearch.save wrote, over the catalogue."""
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
        write_content(parts.content, parts.catalogue.num_item_rows, directory)
        models = _write_models(parts, directory)
        indexed = write_indexes(directory, _items(parts), parts.users)
        if parts.semantic_ids is not None:
            copy_semantic_ids(parts.semantic_ids, directory)
        seal(
            directory,
            kind="bundle",
            version=version,
            profile="full" if parts.generative or parts.ensemble else "fast",
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
            models=models,
            specs={name: one.spec for name, one in parts.outside.items()},
            metrics={name: dict(values) for name, values in (metrics or {}).items()} | indexed,
            config_digest=config_digest,
            content=parts.content_source,
            exclude_history=parts.exclude_history,
            semantic_ids=ItemSemanticIds.load(directory).source if parts.semantic_ids else None,
        )
        load_bundle(directory)
    return final


def _write_models(parts: BundleParts, directory: Path) -> list[str]:
    """Copy fitted models into a bundle that is being written; return the parts' names."""
    saved = {
        POPULARITY.name: parts.popularity,
        **parts.item_weights,
        TWO_TOWER.name: None if parts.two_tower is None else parts.two_tower.model,
        CONTENT_SIMILARITY: parts.content_similarity,
        SEQUENCE: parts.sequence,
        ENSEMBLE: parts.ensemble,
        GENERATIVE: parts.generative,
        **{name: one.model for name, one in parts.outside.items()},
        **{BLENDS[profile]: path for profile, path in parts.blends.items()},
        RANKER: parts.ranker,
        TEXT_SEARCH: parts.text_search,
    }
    found = {name: source for name, source in saved.items() if source is not None}
    for name, source in found.items():
        copy_model(source, directory / name)
    if parts.two_tower is not None:
        write_two_tower(parts.two_tower, directory)
    if parts.content_similarity is not None:
        drop_item_vectors(directory / CONTENT_SIMILARITY)
    return list(found)


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
