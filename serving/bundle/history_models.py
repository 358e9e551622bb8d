"""Models of a bundle that read a history and rank everything, and the blends of their lists.

    item_to_item/, ease/
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
from collections.abc import Callable, Mapping
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
from recsys.models.item_tower import ItemCatalogue, Over
from recsys.models.item_weights.model import ItemWeights
from recsys.models.names import spec_at
from recsys.models.sequence.model import SequenceModel
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
        if types := inputs.get("event_types"):
            expected["event_types"] = manifest.event_types[: len(types)]
        for name, value in expected.items():
            found = inputs[name]
            if found != value:
                raise ValueError(
                    f"the model was trained with {name} {found}, the bundle has {value}; "
                    "its parts come from different runs, release the bundle again"
                )


def drop_item_vectors(directory: Path) -> None:
    """Drop the vectors of a saved ContentSimilarity: they follow from the bundle's content."""
    path = directory / f"{CONTENT_SIMILARITY}.safetensors"
    with reading(path):
        tensors = load_file(path)
        mode = path.stat().st_mode
        save_file({name: tensors[name] for name in Whitening._fields}, path)
        # safetensors lets only the owner read what it writes; a server may be another user.
        path.chmod(mode)


def _load_item_weights(directory: Path, manifest: BundleManifest) -> dict[str, ItemWeights]:
    """Load the tables of weights that there are, by source."""
    found: dict[str, ItemWeights] = {}
    for name in names.ITEM_WEIGHTS:
        if name in manifest.models:
            path = directory / name
            with reading(path):
                found[name] = ItemWeights.load(path)
                found[name].table.check()
            num_rows = manifest.dimensions.num_item_rows
            check_rows(path, (found[name].num_item_rows,), (num_rows,))
    return found


def _load_sequence(
    directory: Path, manifest: BundleManifest, items: ItemCatalogue, part: str
) -> SequenceModel | None:
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


def _load_generation(
    directory: Path,
    manifest: BundleManifest,
    items: ItemCatalogue,
    semantic_ids: ItemSemanticIds | None,
) -> Generation | None:
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


def _load_outside(
    directory: Path, manifest: BundleManifest, items: ItemCatalogue
) -> dict[str, OutsideModel]:
    """Import and load the models of other packages, by name."""
    found = {}
    for name, address in manifest.specs.items():
        spec = spec_at(name, address)
        with reading(directory / name), torch.no_grad():
            found[name] = OutsideModel(spec.load(directory / name, Over(items)), spec.names)
    return found


def _load_blends(
    directory: Path, manifest: BundleManifest, demand: Callable[[], Tensor | None]
) -> Blends:
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
        blends[profile] = blend if blend.demand is None else blend.with_demand(demand())
    return blends


@dataclass(frozen=True, kw_only=True)
class HistoryModels:
    """Models of a bundle that read a history; those that it has."""

    item_weights: Mapping[str, ItemWeights]
    """Models of weights between items, by source."""
    content_similarity: ContentSimilarity | None
    sequence: SequenceModel | None
    ensemble: SequenceModel | None
    generative: Generation | None
    outside: Mapping[str, OutsideModel]
    """Models of other packages, by name."""
    blends: Blends

    def vectors(self) -> dict[str, Callable[[], Tensor]]:
        """Return the functions that give each part's item vectors, [N, D]."""
        found: dict[str, Callable[[], Tensor]] = {
            part: model.all_item_vectors
            for part, model in ((SEQUENCE, self.sequence), (ENSEMBLE, self.ensemble))
            if model is not None
        }
        if (content := self.content_similarity) is not None:
            found[CONTENT_SIMILARITY] = lambda: content.vectors
        return found


def load_history_models(
    directory: Path,
    manifest: BundleManifest,
    items: ItemCatalogue,
    semantic_ids: ItemSemanticIds | None,
    demand: Callable[[], Tensor | None],
) -> HistoryModels:
    """Load the models of a bundle as it was released; ``demand`` as of ``load_ranker``."""
    content = None
    if CONTENT_SIMILARITY in manifest.models:
        with reading(directory / CONTENT_SIMILARITY):
            content = ContentSimilarity.load(directory / CONTENT_SIMILARITY, items.content)
    return HistoryModels(
        item_weights=_load_item_weights(directory, manifest),
        content_similarity=content,
        sequence=_load_sequence(directory, manifest, items, SEQUENCE),
        ensemble=_load_sequence(directory, manifest, items, ENSEMBLE),
        generative=_load_generation(directory, manifest, items, semantic_ids),
        outside=_load_outside(directory, manifest, items),
        blends=_load_blends(directory, manifest, demand),
    )


def grown_history_models(
    models: HistoryModels, items: ItemCatalogue, semantic_ids: ItemSemanticIds | None
) -> HistoryModels:
    """Extend models to a catalogue with appended items, of which tables of weights have none."""
    old, num_rows = models, len(items.content)
    similar, generative = old.content_similarity, old.generative
    return HistoryModels(
        item_weights={
            name: ItemWeights(one.table.grown(num_rows), one.history, one.settings)
            for name, one in old.item_weights.items()
        },
        content_similarity=None if similar is None else similar.grown(items.content),
        sequence=None if old.sequence is None else old.sequence.grown(items),
        ensemble=None if old.ensemble is None else old.ensemble.grown(items),
        generative=None if generative is None else generative.grown(items, semantic_ids),
        outside=old.outside,
        blends=old.blends,
    )
