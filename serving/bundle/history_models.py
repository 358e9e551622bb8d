"""Models of a bundle that read a history and rank everything, and the blends of their lists.

    item_to_item/, ease/, item_knn/
                          settings, table of weights     recsys/models/item_weights/model.py
    content_similarity/   settings, mean of the content      recsys/models/content_similarity.py
    sequence/             settings, weights                  recsys/models/sequence/model.py
    ensemble/             the same with all members
    generative/           settings, weights                  recsys/models/generative/model.py
    blend_fast/           learned weights by source          recsys/retrieval/blend/learned.py
    blend_full/           the same with generated items

None of them is retrained for items that a delta appends: their vectors come from their content,
and the trie of semantic IDs grows by theirs.

Axes: N item rows, F width of content embeddings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, get_args

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import recsys.models.names as names
from recsys.data.batch import all_finite
from recsys.models.content_similarity import ContentSimilarity, Whitening
from recsys.models.generative.model import GenerativeModel
from recsys.models.item_tower import ItemCatalogue
from recsys.models.item_weights.model import ItemWeights
from recsys.models.outside import Over, spec_at
from recsys.models.sequence.model import SequenceModel
from recsys.retrieval.blend.candidate_features import OF_SOURCE
from recsys.retrieval.blend.learned import LearnedBlend
from recsys.semantic_ids.trie import Trie
from serving.bundle.arrays import check_rows, reading
from serving.bundle.manifest import BundleManifest, Profile
from serving.bundle.semantic_ids import ItemSemanticIds

CONTENT_SIMILARITY, SEQUENCE, ENSEMBLE, GENERATIVE = (
    one.name for one in (names.CONTENT, names.SEQUENCE, names.ENSEMBLE, names.GENERATIVE)
)
Blends = Mapping[Profile, LearnedBlend]
BLENDS: Mapping[Profile, str] = {profile: f"blend_{profile}" for profile in get_args(Profile)}
"""Folder of the blend of each profile."""


class EncodesItems(Protocol):
    """A model with item vectors that it computes once and keeps."""

    def all_item_inputs(self) -> Tensor: ...


def encode_items(model: EncodesItems) -> None:
    """Compute a model's item vectors, so that requests in many threads only read them."""
    if not all_finite(model.all_item_inputs()):
        raise ValueError("its item vectors are not finite; train and release it again")


def current_feature(feature: str) -> str:
    """Write a ranker's feature of an earlier version with the source's name of this one."""
    source, _, what = feature.partition(".")
    return f"{names.RENAMED.get(source, source)}.{what}" if what in OF_SOURCE else feature


def check_inputs(
    path: Path, manifest: BundleManifest, content_dim: int, more: Mapping[str, object]
) -> None:
    """Hold what a model was built to read, by its ``config.json``, against what the bundle has."""
    with reading(path):
        inputs = json.loads(path.read_text())["inputs"]
        expected: dict[str, object] = {
            "num_item_rows": manifest.dimensions.num_item_rows,
            "content_dim": content_dim,
            **more,
        }
        if inputs["num_categories"]:
            expected["num_categories"] = manifest.dimensions.num_category_rows
        for name, value in expected.items():
            found = inputs[name]
            if name == "candidate_dense":
                found = [current_feature(feature) for feature in found]
            if found != value:
                raise ValueError(
                    f"the model was trained with {name} {found}, the bundle has {value}; "
                    "its parts come from different runs, release the bundle again"
                )


def load_item_weights(
    directory: Path, manifest: BundleManifest, num_item_rows: int
) -> dict[str, ItemWeights]:
    """Load the tables of weights that there are, by source; rows that a delta adds have none."""
    found: dict[str, ItemWeights] = {}
    for name in names.ITEM_WEIGHTS:
        if name not in manifest.models:
            continue
        path = directory / name
        with reading(path):
            model = ItemWeights.load(path)
            model.table.check()
        check_rows(path, (model.num_item_rows,), (manifest.dimensions.num_item_rows,))
        grown = model.table.grown(num_item_rows)
        found[name] = ItemWeights(grown, model.history, model.settings)
    return found


def drop_item_vectors(directory: Path) -> None:
    """Drop the vectors of a saved ContentSimilarity: they follow from the bundle's content."""
    path = directory / f"{CONTENT_SIMILARITY}.safetensors"
    with reading(path):
        tensors = load_file(path)
        mode = path.stat().st_mode
        save_file({name: tensors[name] for name in Whitening._fields}, path)
        # safetensors lets only the owner read what it writes; a server may be another user.
        path.chmod(mode)


def load_content_similarity(
    directory: Path, manifest: BundleManifest, items: ItemCatalogue
) -> ContentSimilarity | None:
    """Load it over the content of a catalogue that may have grown; None without."""
    if CONTENT_SIMILARITY not in manifest.models:
        return None
    with reading(directory / CONTENT_SIMILARITY):
        return ContentSimilarity.load(directory / CONTENT_SIMILARITY, items.content)


def load_sequence(
    directory: Path, manifest: BundleManifest, items: ItemCatalogue, part: str = SEQUENCE
) -> SequenceModel | None:
    """Load a sequence model over a catalogue that may have grown; None without."""
    if part not in manifest.models:
        return None
    path = directory / part
    check_inputs(path / "config.json", manifest, items.content.shape[1], {})
    with reading(path), torch.no_grad():
        model = SequenceModel.load(path, items, backend="torch")
        encode_items(model)
    check_rows(path, (model.num_item_rows,), (len(items.content),))
    return model


@dataclass(frozen=True, kw_only=True)
class Generation:
    """The generative model with the trie of what it may generate."""

    model: GenerativeModel
    trie: Trie
    """Trie of the semantic IDs of all item rows, appended ones included."""

    def grown(self, items: ItemCatalogue, semantic_ids: ItemSemanticIds | None) -> Generation:
        """Generate the IDs of a catalogue with appended items."""
        assert semantic_ids is not None
        ids = semantic_ids.item_codes
        model = self.model.grown(items).with_codes(ids.codes)
        return Generation(model=model, trie=Trie.of_items(ids))


def load_generation(
    directory: Path,
    manifest: BundleManifest,
    items: ItemCatalogue,
    semantic_ids: ItemSemanticIds | None,
) -> Generation | None:
    """Load the generative model over IDs that may have grown; None without.

    Args:
        manifest: Of the bundle as it was released, before any delta.
    """
    if GENERATIVE not in manifest.models:
        return None
    path, released = directory / GENERATIVE, manifest.semantic_ids
    if semantic_ids is None or released is None:
        raise ValueError(
            f"{path} generates semantic IDs and the bundle has none; release it with its IDs"
        )
    levels = {"level_sizes": released.level_sizes}
    check_inputs(path / "config.json", manifest, items.content.shape[1], levels)
    ids = semantic_ids.item_codes
    with reading(path), torch.no_grad():
        model = GenerativeModel.load(
            path, items, ids.codes, semantic_ids=released.version, backend="torch"
        )
        encode_items(model)
    return Generation(model=model, trie=Trie.of_items(ids))


class OutsideModel(NamedTuple):
    """A model of another package."""

    model: Any
    """Its ``score`` ranks every item that it was fitted with for a batch of queries, [B, N]."""
    names: names.ModelName


def load_outside(
    directory: Path, manifest: BundleManifest, items: ItemCatalogue
) -> dict[str, OutsideModel]:
    """Import and load the models of other packages, by name."""
    found = {}
    for name, address in manifest.specs.items():
        spec = spec_at(name, address)
        with reading(directory / name), torch.no_grad():
            found[name] = OutsideModel(spec.load(directory / name, Over(items)), spec.names)
    return found


def load_blends(directory: Path, manifest: BundleManifest) -> Blends:
    """Load the learned blend of each profile that the bundle has."""
    there = {one for one in names.MODELS if one.name in manifest.models}
    blends: dict[Profile, LearnedBlend] = {}
    for profile, folder in BLENDS.items():
        if folder not in manifest.models:
            continue
        with reading(directory / folder):
            blend = LearnedBlend.load(directory / folder)
        allowed = {one.name for one in there if profile in ("full", one.profile)}
        allowed |= manifest.specs.keys()
        if missing := sorted(set(blend.sources) - allowed):
            raise ValueError(
                f"{directory / folder} weighs the sources {missing}, profile {profile} of this "
                f"bundle has {sorted(allowed)}; fit the blend again and release them together"
            )
        blends[profile] = blend
    return blends
