"""A bundle: everything one request needs, in one verified directory; its schema stands here.

    bundle-<version>/
        catalogue/      item ids, display texts, categories           serving/bundle/catalogue.py
        users/          user ids, categorical features                serving/bundle/users.py
        histories/      what each user did, oldest first
        popularity/     the fallback                                  recsys/models/popularity.py
        item_to_item/   neighbours (may be absent)                    recsys/models/item_to_item.py
        two_tower/      model, content.npy, item_vectors.npy          serving/bundle/retriever.py
        index/          items.faiss and its description (both may be absent)
        semantic_ids/   codes, id rows (may be absent, with quantizer/)
        quantizer/      gives new items their IDs                     serving/bundle/semantic_ids.py
        content_similarity/, sequence/, ensemble/, generative/, blend_fast/, blend_full/
                        each may be absent                       serving/bundle/history_models.py
        ranker/         orders what blend_fast finds (may be absent)  serving/bundle/ranker.py
        manifest.json   digests, dimensions, versions; written last   serving/bundle/manifest.py
    bundle-<version>+<n>/   a delta: rows appended to its parent      serving/bundle/delta.py
    current             link to the one that is served

Pipelines write bundles with `write_bundle` and `publish`; serving and batch scoring read them with
`load_bundle`, which refuses whatever is not exactly what was written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from recsys.data.durable import new_directory
from recsys.models.content_similarity import ContentSimilarity
from recsys.models.item_to_item import ItemToItem, Neighbours
from recsys.models.item_tower import ItemCatalogue
from recsys.models.popularity import Popularity
from recsys.models.sequence.model import SequenceModel
from recsys.retrieval.blend.learned import LearnedBlend
from serving.bundle.catalogue import Catalogue, reading
from serving.bundle.delta import Delta, chain_of, semantic_ids_of
from serving.bundle.history_models import (
    BLENDS,
    CONTENT_SIMILARITY,
    ENSEMBLE,
    GENERATIVE,
    SEQUENCE,
    Generation,
    copy_content_similarity,
    load_blends,
    load_content_similarity,
    load_generation,
    load_sequence,
)
from serving.bundle.manifest import (
    VERSION_PATTERN,
    BundleManifest,
    Dimensions,
    Profile,
    Verdict,
    bundle_directory,
    seal,
    verify_files,
    vocabulary_digests,
)
from serving.bundle.ranker import RANKER, RankerPart, load_ranker
from serving.bundle.retriever import (
    Retriever,
    TwoTowerParts,
    check_rows,
    copy_model,
    known_categories,
    load_retriever,
    write_two_tower,
)
from serving.bundle.semantic_ids import ItemSemanticIds, SemanticIdParts
from serving.bundle.users import Users
from serving.context import check_context_features


@dataclass(frozen=True, kw_only=True)
class BundleParts:
    """What a bundle is made of; row counts must agree."""

    catalogue: Catalogue
    users: Users
    popularity: Path
    """Directory that Popularity.save wrote."""
    item_to_item: Path | None = None
    """Directory that ItemToItem.save wrote."""
    two_tower: TwoTowerParts | None = None
    semantic_ids: SemanticIdParts | None = None
    content_similarity: Path | None = None
    """Directory that ContentSimilarity.save wrote, of the two-tower's content."""
    sequence: Path | None = None
    """Directory that SequenceModel.save wrote, over the two-tower's content and the catalogue."""
    ensemble: Path | None = None
    """The same of all its members, where profile fast asks the first ones alone."""
    generative: Path | None = None
    """Directory that GenerativeModel.save wrote, of the catalogue and of ``semantic_ids``."""
    blends: Mapping[Profile, Path] = field(default_factory=dict)
    """Directories that LearnedBlend.save wrote, by the profile that each one ranks ``home`` of."""
    ranker: Path | None = None
    """Directory of train_ranker: what Ranker.save wrote, and how many candidates it orders."""
    user_features: Mapping[str, int] = field(default_factory=dict)
    """Cardinality of each of users.features."""
    context_features: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A loaded bundle, its deltas applied; nothing in it changes after it is loaded."""

    manifest: BundleManifest
    digest: str
    """sha256 of the manifest (of the last delta, where there is one)."""
    catalogue: Catalogue
    users: Users
    popularity: Popularity
    item_to_item: ItemToItem | None
    retriever: Retriever | None
    semantic_ids: ItemSemanticIds | None
    content_similarity: ContentSimilarity | None
    sequence: SequenceModel | None
    ensemble: SequenceModel | None
    generative: Generation | None
    blends: Mapping[Profile, LearnedBlend]
    ranker: RankerPart | None
    context_features: Mapping[str, int]
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


def write_bundle(
    bundles_dir: Path,
    parts: BundleParts,
    *,
    version: str,
    metrics: Mapping[str, Mapping[str, float]] | None = None,
    verdicts: Sequence[Verdict] = (),
    config_digest: str = "",
) -> Path:
    """Write ``bundle-<version>`` whole or not at all, and load it once to prove it.

    Args:
        bundles_dir: Holds all versions and ``current``; made where it is missing.
        parts: What goes in.
        version: Letters, digits, dot, dash, underscore; never reused.
        metrics: Test metrics by model name, finite.
        verdicts: What the release gate found.
        config_digest: Of the run that made the parts.

    Raises:
        ValueError: The version exists or is not a name, or parts do not agree.
    """
    if "+" in version or not re.fullmatch(VERSION_PATTERN, version):
        raise ValueError(
            f"version {version!r} of a bundle must be a letter or digit, then at most 63 letters, "
            "digits, dots, dashes and underscores (a plus is for deltas, see write_delta)"
        )
    final = bundle_directory(bundles_dir, version)
    with new_directory(final) as directory:
        parts.catalogue.save(directory)
        parts.users.save(directory)
        models = _write_models(parts, directory)
        if parts.semantic_ids is not None:
            parts.semantic_ids.copy_to(directory)
        seal(
            directory,
            kind="bundle",
            version=version,
            profile="full" if parts.generative or parts.ensemble else "fast",
            dimensions=_dimensions(parts),
            user_features=dict(parts.user_features),
            context_features=dict(parts.context_features),
            models=models,
            metrics={name: dict(values) for name, values in (metrics or {}).items()},
            verdicts=list(verdicts),
            config_digest=config_digest,
            content=parts.two_tower.content_source if parts.two_tower else None,
            semantic_ids=ItemSemanticIds.load(directory).source if parts.semantic_ids else None,
        )
        load_bundle(directory)
    return final


def _write_models(parts: BundleParts, directory: Path) -> list[str]:
    """Copy what was fitted into a bundle that is being written; return the parts' names."""
    copy_model(parts.popularity, directory / "popularity")
    models = ["popularity"]
    if parts.item_to_item is not None:
        copy_model(parts.item_to_item, directory / "item_to_item")
        models.append("item_to_item")
    if parts.two_tower is not None:
        write_two_tower(parts.two_tower, directory)
        models.append("two_tower")
    if parts.content_similarity is not None:
        copy_content_similarity(parts.content_similarity, directory / CONTENT_SIMILARITY)
        models.append(CONTENT_SIMILARITY)
    if parts.sequence is not None:
        copy_model(parts.sequence, directory / SEQUENCE)
        models.append(SEQUENCE)
    if parts.ensemble is not None:
        copy_model(parts.ensemble, directory / ENSEMBLE)
        models.append(ENSEMBLE)
    if parts.generative is not None:
        copy_model(parts.generative, directory / GENERATIVE)
        models.append(GENERATIVE)
    for profile, path in parts.blends.items():
        copy_model(path, directory / BLENDS[profile])
        models.append(BLENDS[profile])
    if parts.ranker is not None:
        copy_model(parts.ranker, directory / RANKER)
        models.append(RANKER)
    return models


def _dimensions(parts: BundleParts) -> Dimensions:
    two_tower = parts.two_tower
    return Dimensions(
        num_item_rows=parts.catalogue.num_item_rows,
        num_user_rows=parts.users.num_user_rows,
        num_category_rows=parts.catalogue.num_category_rows,
        num_events=len(parts.users.item_rows),
        embedding_dim=0 if two_tower is None else two_tower.item_vectors.shape[1],
    )


def load_bundle(path: Path) -> Bundle:
    """Verify a bundle, or a delta with all it descends from, and load it.

    Every file's digest and every agreement of dimensions is checked before anything is used.

    Args:
        path: ``bundle-<version>``, or the ``current`` link.

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

    retriever = load_retriever(base.directory, base.manifest, catalogue, deltas)
    items = _items_of(catalogue, base.manifest) if retriever is None else retriever.items
    semantic_ids = semantic_ids_of(chain)
    blends = load_blends(base.directory, base.manifest)
    return Bundle(
        manifest=newest.manifest,
        digest=newest.digest,
        catalogue=catalogue,
        users=users,
        popularity=_load_popularity(base.directory, base.manifest, catalogue.num_item_rows),
        item_to_item=_load_item_to_item(base.directory, base.manifest, catalogue.num_item_rows),
        retriever=retriever,
        semantic_ids=semantic_ids,
        content_similarity=load_content_similarity(base.directory, base.manifest, items),
        sequence=load_sequence(base.directory, base.manifest, items),
        ensemble=load_sequence(base.directory, base.manifest, items, ENSEMBLE),
        generative=load_generation(base.directory, base.manifest, items, semantic_ids),
        blends=blends,
        ranker=load_ranker(base.directory, base.manifest, items, blends),
        context_features=base.manifest.context_features,
        num_released_rows=base.manifest.dimensions.num_item_rows,
    )


def _items_of(catalogue: Catalogue, manifest: BundleManifest) -> ItemCatalogue:
    """Know the items of a bundle without content."""
    known = known_categories(catalogue, manifest.dimensions.num_category_rows)
    return ItemCatalogue(torch.empty(catalogue.num_item_rows, 0), known)


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


def _load_item_to_item(
    directory: Path, manifest: BundleManifest, num_item_rows: int
) -> ItemToItem | None:
    """Load the neighbours; rows that a delta adds have none."""
    if "item_to_item" not in manifest.models:
        return None
    path = directory / "item_to_item"
    with reading(path):
        model = ItemToItem.load(path)
        offsets, rows, weights = model.neighbours
        cut = offsets[0] == 0 and bool((offsets.diff() >= 0).all())
        if not cut or not int(offsets[-1]) == len(rows) == len(weights):
            raise ValueError("its offsets do not cut its neighbours; release the bundle again")
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < model.num_item_rows:
            raise ValueError(
                f"it names item rows {int(rows.min())} to {int(rows.max())} of "
                f"{model.num_item_rows}; release the bundle again"
            )
    check_rows(path, (model.num_item_rows,), (manifest.dimensions.num_item_rows,))
    added = offsets[-1:].expand(num_item_rows - model.num_item_rows)
    return ItemToItem(model.config, Neighbours(torch.cat([offsets, added]), rows, weights))
