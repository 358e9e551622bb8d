"""Load a bundle: everything is verified before it is used, and deltas are applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from features.point_in_time import FEATURES
from recsys.models.content_similarity import ContentSimilarity
from recsys.models.item_tower import ItemCatalogue
from recsys.models.item_weights.model import ItemWeights
from recsys.models.popularity import Popularity
from recsys.models.sequence.model import SequenceModel
from recsys.retrieval.blend.learned import LearnedBlend
from serving.bundle.arrays import reading
from serving.bundle.catalogue import Catalogue
from serving.bundle.delta import Delta, chain_of, semantic_ids_of
from serving.bundle.history_models import (
    ENSEMBLE,
    Generation,
    load_blends,
    load_content_similarity,
    load_generation,
    load_item_weights,
    load_sequence,
)
from serving.bundle.items import load_items
from serving.bundle.manifest import BundleManifest, Profile, verify_files, vocabulary_digests
from serving.bundle.model_files import check_rows
from serving.bundle.ranker import LoadedRanker, load_ranker
from serving.bundle.retriever import Retriever, load_retriever
from serving.bundle.semantic_ids import ItemSemanticIds
from serving.bundle.users import Users


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A loaded bundle, its deltas applied; nothing in it changes after it is loaded."""

    manifest: BundleManifest
    digest: str
    """sha256 of the manifest (of the last delta, where there is one)."""
    catalogue: Catalogue
    users: Users
    popularity: Popularity
    item_weights: Mapping[str, ItemWeights]
    """Item-to-item, EASE and item-kNN, by source; those that the bundle has."""
    items: ItemCatalogue
    """Content embeddings and categories of every item row."""
    retriever: Retriever | None
    semantic_ids: ItemSemanticIds | None
    content_similarity: ContentSimilarity | None
    sequence: SequenceModel | None
    ensemble: SequenceModel | None
    generative: Generation | None
    blends: Mapping[Profile, LearnedBlend]
    ranker: LoadedRanker | None
    context_features: Mapping[str, int]
    exclude_history: bool
    """Whether lists leave out the history where the deployment does not say otherwise."""
    num_released_rows: int
    """Item rows that models were fitted with; those behind were appended by deltas."""

    @property
    def version(self) -> str:
        return self.manifest.version

    @property
    def num_item_rows(self) -> int:
        return self.catalogue.num_item_rows

    @cached_property
    def item_counts(self) -> Tensor:
        """Events of each item that models were fitted on, [N] float64; 0 for appended ones."""
        counts = np.bincount(self.users.item_rows, minlength=self.num_item_rows)
        return torch.from_numpy(counts.astype(np.float64))


def load_bundle(path: Path) -> Bundle:
    """Verify ``bundle-<version>`` or ``current``, with all that a delta descends from, and load it.

    Every file's digest and every agreement of dimensions is checked before anything is used.

    Raises:
        ValueError: Names the file or the two numbers that do not fit, and what to do.
    """
    chain = chain_of(path.resolve())
    for link in chain:
        verify_files(link.directory, link.manifest)
        if vocabulary_digests(link.manifest.files) != link.manifest.vocabularies:
            raise ValueError(
                f"{link.directory} has id tables other than its vocabulary digests say; "
                "release the bundle again"
            )
    base, newest = chain[0], chain[-1]
    check_context_features(base.directory, base.manifest.context_features)
    deltas = [Delta.load(link) for link in chain[1:]]

    catalogue = Catalogue.load(base.directory)
    catalogue.check(base.directory)
    _check_count(base.directory, "item", catalogue.num_item_rows, base.manifest)
    _check_count(base.directory, "category", catalogue.num_category_rows, base.manifest)
    for delta in deltas:
        catalogue = delta.extend(catalogue)
    users = Users.load(base.directory, list(base.manifest.user_features))
    users.check(base.directory, base.manifest.dimensions.num_item_rows, base.manifest.user_features)
    _check_count(base.directory, "user", users.num_user_rows, base.manifest)

    items = load_items(base.directory, base.manifest, catalogue, deltas)
    retriever = load_retriever(base.directory, base.manifest, items, deltas)
    semantic_ids = semantic_ids_of(chain)
    blends = load_blends(base.directory, base.manifest)
    return Bundle(
        manifest=newest.manifest,
        digest=newest.digest,
        catalogue=catalogue,
        users=users,
        popularity=_load_popularity(base.directory, base.manifest, catalogue.num_item_rows),
        item_weights=load_item_weights(base.directory, base.manifest, catalogue.num_item_rows),
        items=items,
        retriever=retriever,
        semantic_ids=semantic_ids,
        content_similarity=load_content_similarity(base.directory, base.manifest, items),
        sequence=load_sequence(base.directory, base.manifest, items),
        ensemble=load_sequence(base.directory, base.manifest, items, ENSEMBLE),
        generative=load_generation(base.directory, base.manifest, items, semantic_ids),
        blends=blends,
        ranker=load_ranker(base.directory, base.manifest, items, blends),
        context_features=base.manifest.context_features,
        exclude_history=base.manifest.exclude_history,
        num_released_rows=base.manifest.dimensions.num_item_rows,
    )


def _check_count(directory: Path, name: str, found: int, manifest: BundleManifest) -> None:
    expected = getattr(manifest.dimensions, f"num_{name}_rows")
    if found != expected:
        raise ValueError(
            f"{directory} has {found} {name} rows, its manifest says {expected}; its parts come "
            "from different runs, release the bundle again"
        )


def _load_popularity(directory: Path, manifest: BundleManifest, num_item_rows: int) -> Popularity:
    """Load popularity; rows that a delta adds have score 0."""
    path = directory / "popularity"
    with reading(path):
        model = Popularity.load(path)
    check_rows(path, (model.num_item_rows,), (manifest.dimensions.num_item_rows,))
    if torch.isnan(model.item_scores).any():
        raise ValueError(f"{path} holds NaN; fit the baselines and release the bundle again")
    added = torch.zeros(num_item_rows - model.num_item_rows)
    return Popularity(model.config, torch.cat([model.item_scores, added]))


def check_context_features(path: Path, cardinalities: Mapping[str, int]) -> None:
    """Check that this version of the platform can compute what a bundle's model reads.

    Raises:
        ValueError: Names the feature.
    """
    for name, cardinality in cardinalities.items():
        known = FEATURES[name].cardinality if name in FEATURES else None
        if cardinality != known:
            raise ValueError(
                f"{path} needs context feature {name!r} with {cardinality} categories, here it has "
                f"{known} (known: {sorted(FEATURES)}); serve it with the version that released it"
            )
