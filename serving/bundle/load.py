"""Load a bundle: everything is verified before it is used, and deltas are applied."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from recsys.data.durable import Held
from recsys.layers.embedding.tables import filled_later
from recsys.models.content_similarity import ContentSimilarity
from recsys.models.item_tower import ItemCatalogue
from recsys.models.item_weights.model import ItemWeights
from recsys.models.popularity import Popularity
from recsys.models.sequence.model import SequenceModel
from recsys.models.text_search.search import TextSearch
from serving.bundle.catalogue import Catalogue
from serving.bundle.delta import Delta, read_semantic_ids
from serving.bundle.history_models import (
    ENSEMBLE,
    Blends,
    Generation,
    OutsideModel,
    load_blends,
    load_content_similarity,
    load_generation,
    load_item_weights,
    load_outside,
    load_sequence,
)
from serving.bundle.item_index import (
    ItemIndexes,
    Retriever,
    compared,
    grown_item_indexes,
    grown_retriever,
    load_item_indexes,
    load_retriever,
)
from serving.bundle.items import (
    grown_items,
    grown_popularity,
    grown_text_search,
    load_items,
    load_popularity,
    load_text_search,
)
from serving.bundle.manifest import BundleManifest, verify_files, vocabulary_digests
from serving.bundle.properties import NO_PROPERTIES, PackedMasks, Properties, load_properties
from serving.bundle.published import Link, permitted, read_chain
from serving.bundle.ranker import LoadedRanker, load_ranker
from serving.bundle.semantic_ids import ItemSemanticIds
from serving.bundle.users import Users, check_context_features


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
    outside: Mapping[str, OutsideModel]
    """Models of other packages, by name."""
    indexes: ItemIndexes
    """Indexes of sequence models and content, by part; large catalogues alone have them."""
    blends: Blends
    ranker: LoadedRanker | None
    text_search: TextSearch | None = None
    """Finds items by a text; None where titles alone are searched."""
    properties: Properties = NO_PROPERTIES
    """Properties of items that filters and rules read."""
    context_features: Mapping[str, int]
    exclude_history: bool
    """True if lists leave out the history where the deployment does not say otherwise."""
    num_released_rows: int
    """Item rows that models were fitted with; later ones were appended by deltas."""
    directory: Path
    """Folder of the bundle as it was released."""
    released: Bundle | None = None
    """The bundle before its deltas; None without deltas."""
    held: Held | None = field(default=None, repr=False, compare=False)
    """Keeps the folders that were read from being removed."""

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

    @cached_property
    def masks(self) -> PackedMasks:
        """Masks of filters that requests repeat."""
        return PackedMasks(self.num_item_rows)


@permitted()
def load_bundle(path: Path, loaded: Bundle | None = None) -> Bundle:
    """Verify ``bundle-<version>`` or ``current``, with all that a delta descends from, and load it.

    Every file's digest and every agreement of dimensions is checked before anything is used; files
    that this process has hashed are hashed again only if they changed.

    Args:
        loaded: Where the path is a delta of the same release, arrays and models are shared with
            this one, which stays as it is; only new rows are read.
    """
    target = path.resolve()
    # A folder that may not be listed would look empty, its files missing.
    for _ in os.walk(target, onerror=_raise):
        pass
    chain = read_chain(target)
    held = Held(link.directory for link in chain)
    for link in chain:
        verify_files(link.directory, link.manifest)
        if vocabulary_digests(link.manifest.files) != link.manifest.vocabularies:
            raise ValueError(
                f"{link.directory} has id tables other than its vocabulary digests say; "
                "release the bundle again"
            )
    released = None if loaded is None else loaded.released or loaded
    found = (released.directory, released.digest) if released else None
    if released is None or found != (chain[0].directory, chain[0].digest):
        with filled_later():
            released = replace(_load_released(chain[0]), held=held)
    return replace(_grown(released, chain), held=held) if len(chain) > 1 else released


def _raise(error: OSError) -> NoReturn:
    raise error


def _load_released(link: Link) -> Bundle:
    """Load a bundle as it was released, its files verified."""
    directory, manifest = link.directory, link.manifest
    check_context_features(directory, manifest.context_features)
    catalogue = Catalogue.load(directory)
    catalogue.check(directory)
    _check_count(directory, "item", catalogue.num_item_rows, manifest)
    _check_count(directory, "category", catalogue.num_category_rows, manifest)
    num_item_rows = manifest.dimensions.num_item_rows
    users = Users.load(directory, list(manifest.user_features))
    users.check(directory, num_item_rows, manifest.user_features)
    _check_count(directory, "user", users.num_user_rows, manifest)

    properties = load_properties(directory, manifest)
    properties.check(directory, num_item_rows)
    items = load_items(directory, manifest, catalogue)
    semantic_ids = read_semantic_ids([link])
    blends = load_blends(directory, manifest)
    reads_demand = any(blend.demand is not None for blend in blends.values())
    demand = users.measure_demand(num_item_rows) if reads_demand else None
    blends = {profile: blend.with_demand(demand) for profile, blend in blends.items()}
    content = load_content_similarity(directory, manifest, items)
    sequence = load_sequence(directory, manifest, items)
    ensemble = load_sequence(directory, manifest, items, ENSEMBLE)
    return Bundle(
        manifest=manifest,
        digest=link.digest,
        directory=directory,
        catalogue=catalogue,
        users=users,
        popularity=load_popularity(directory, manifest),
        item_weights=load_item_weights(directory, manifest, num_item_rows),
        items=items,
        retriever=load_retriever(directory, manifest, items),
        semantic_ids=semantic_ids,
        content_similarity=content,
        sequence=sequence,
        ensemble=ensemble,
        generative=load_generation(directory, manifest, items, semantic_ids),
        outside=load_outside(directory, manifest, items),
        indexes=load_item_indexes(directory, manifest, compared(sequence, ensemble, content)),
        blends=blends,
        ranker=load_ranker(directory, manifest, items, blends, demand),
        text_search=load_text_search(directory, manifest),
        properties=properties,
        context_features=manifest.context_features,
        exclude_history=manifest.exclude_history,
        num_released_rows=num_item_rows,
    )


def _grown(released: Bundle, chain: Sequence[Link]) -> Bundle:
    """Apply the deltas of a chain to its first bundle; what does not grow is shared."""
    deltas = [Delta.load(link) for link in chain[1:]]
    catalogue = released.catalogue
    properties = released.properties
    for delta in deltas:
        catalogue = delta.extend(catalogue)
        properties = delta.extend_properties(properties)
    items = grown_items(released.items, catalogue, released.catalogue.num_category_rows, deltas)
    semantic_ids = read_semantic_ids(chain, released.semantic_ids)
    old = released
    retriever, generative, similar = old.retriever, old.generative, old.content_similarity
    content_similarity = None if similar is None else similar.grown(items.content)
    sequence = None if old.sequence is None else old.sequence.grown(items)
    ensemble = None if old.ensemble is None else old.ensemble.grown(items)
    vectors = compared(sequence, ensemble, content_similarity)
    return replace(
        released,
        released=released,
        manifest=chain[-1].manifest,
        digest=chain[-1].digest,
        catalogue=catalogue,
        popularity=grown_popularity(old.popularity, catalogue.num_item_rows),
        item_weights={
            name: ItemWeights(one.table.grown(catalogue.num_item_rows), one.history, one.settings)
            for name, one in old.item_weights.items()
        },
        items=items,
        retriever=None if retriever is None else grown_retriever(retriever, items, deltas),
        semantic_ids=semantic_ids,
        content_similarity=content_similarity,
        sequence=sequence,
        ensemble=ensemble,
        indexes=grown_item_indexes(old.indexes, vectors),
        generative=None if generative is None else generative.grown(items, semantic_ids),
        ranker=None if old.ranker is None else old.ranker.grown(items),
        text_search=grown_text_search(old.text_search, catalogue),
        properties=properties,
    )


def _check_count(directory: Path, name: str, found: int, manifest: BundleManifest) -> None:
    expected = getattr(manifest.dimensions, f"num_{name}_rows")
    if found != expected:
        raise ValueError(
            f"{directory} has {found} {name} rows, its manifest says {expected}; its parts come "
            "from different runs, release the bundle again"
        )
