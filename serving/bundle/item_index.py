"""Indexes of a bundle's item vectors, read and written, with the two-tower of the first one.

    two_tower/   config.json, two_tower.safetensors     recsys/models/two_tower.py
                 item_vectors.npy [N, D]
    index/       items.faiss and its JSON                recsys/retrieval/faiss_index.py
                 sequence.faiss, ensemble.faiss, content_similarity.faiss of a large catalogue

Up to `COMPARED_UP_TO` item rows a request of the others compares every vector, which is exact and
takes less time than a search. Beyond, a search looks into the fewest lists that find 99% of the
best 100 for users' histories (``tuned_index``). The manifest's metrics have the recall.

Axes: N item rows, D width of item vectors, Q queries.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.models.content_similarity import ContentSimilarity
from recsys.models.content_similarity import OneContentHistory as OneContent
from recsys.models.item_tower import ItemCatalogue
from recsys.models.names import TWO_TOWER
from recsys.models.sequence.model import SequenceModel
from recsys.models.sequence.one import OneHistory
from recsys.models.two_tower import TwoTower
from recsys.retrieval.faiss_index import FaissIndex, meta_path
from recsys.retrieval.faiss_library import FaissIndexConfig
from recsys.retrieval.index import tuned_index
from serving.bundle.arrays import check_rows, load_array, reading
from serving.bundle.delta import Delta
from serving.bundle.history_models import (
    CONTENT_SIMILARITY,
    ENSEMBLE,
    SEQUENCE,
    check_inputs,
    encode_items,
)
from serving.bundle.manifest import BundleManifest
from serving.bundle.users import Users

FOLDER = "index"
ItemIndexes = Mapping[str, FaissIndex]
"""Indexes by part."""
COMPARED_UP_TO = FaissIndexConfig().flat_max_rows
Vectors = NDArray[np.float32]
INDEX_FILE = Path(FOLDER) / "items.faiss"
ITEM_VECTORS = Path(TWO_TOWER.name) / "item_vectors.npy"
NUM_QUERIES = 300
RECALL = "recall@100"


def load_item_indexes(
    directory: Path, manifest: BundleManifest, vectors: Mapping[str, Callable[[], Tensor]]
) -> dict[str, FaissIndex]:
    """Load the indexes that a bundle has, by part; ``vectors`` are of its `HistoryModels`."""
    found: dict[str, FaissIndex] = {}
    for part, vectors_of in vectors.items():
        name = f"{FOLDER}/{part}.faiss"
        if name not in manifest.files:
            continue
        path = directory / name
        with reading(path):
            index = FaissIndex.load(path, sha256=manifest.files[name].sha256, num_threads=1)
        check_rows(path, (index.num_item_rows, index.dim), tuple(vectors_of().shape))
        found[part] = index
    return found


@torch.no_grad()
def grown_item_indexes(
    indexes: ItemIndexes, vectors: Mapping[str, Callable[[], Tensor]]
) -> dict[str, FaissIndex]:
    """Append the rows that deltas add to copies of the indexes."""
    found: dict[str, FaissIndex] = {}
    for part, index in indexes.items():
        found[part] = index.copy()
        found[part].add(vectors[part]()[index.num_item_rows :])
    return found


@dataclass(frozen=True, kw_only=True)
class TwoTowerParts:
    """The index of a trained two-tower, with its vectors."""

    index: Path
    """File that FaissIndex.save wrote, with its JSON."""
    item_vectors: Vectors
    """[N, D]; row 0 is not read."""


@dataclass(frozen=True, kw_only=True)
class Retriever:
    """The two-tower with its index."""

    model: TwoTower
    index: FaissIndex

    @property
    def index_name(self) -> str:
        """Kind and size of the index, as replies name it."""
        return f"{self.index.kind}-{self.index.num_item_rows - 1}x{self.index.dim}"


def write_two_tower(parts: TwoTowerParts, directory: Path) -> None:
    """Add the vectors and the index to a bundle that holds the copied model."""
    (directory / INDEX_FILE).parent.mkdir()
    shutil.copyfile(parts.index, directory / INDEX_FILE)
    shutil.copyfile(meta_path(parts.index), meta_path(directory / INDEX_FILE))
    np.save(directory / ITEM_VECTORS, np.asarray(parts.item_vectors, np.float32))


def load_retriever(
    directory: Path, manifest: BundleManifest, items: ItemCatalogue
) -> Retriever | None:
    """Load the two-tower and its index; None without."""
    if TWO_TOWER.name not in manifest.models:
        return None
    num_rows, dim = manifest.dimensions.num_item_rows, manifest.dimensions.embedding_dim
    vectors = load_array(directory / ITEM_VECTORS, np.float32, 2)
    check_rows(directory / ITEM_VECTORS, vectors.shape, (num_rows, dim))
    path = directory / INDEX_FILE
    with reading(path):
        sha256 = manifest.files[INDEX_FILE.as_posix()].sha256
        index = FaissIndex.load(path, sha256=sha256, num_threads=1)
    check_rows(path, (index.num_item_rows, index.dim), (num_rows, dim))
    features = {
        "user_features": manifest.user_features,
        "context_features": manifest.context_features,
    }
    folder = directory / TWO_TOWER.name
    check_inputs(folder / "config.json", manifest, items.content.shape[1], features)
    with reading(folder), torch.no_grad():
        model = TwoTower.load(folder, items, backend="torch")
        encode_items(model)
    if model.config.embedding_dim != dim:
        check_rows(folder, (model.config.embedding_dim,), (dim,))
    return Retriever(model=model, index=index)


def grown_retriever(retriever: Retriever, items: ItemCatalogue, delta: Delta) -> Retriever:
    """Append what a delta adds to a copy of the index; the model shares its weights."""
    index = retriever.index.copy()
    check_rows(delta.directory, delta.item_vectors.shape, (delta.num_new_items, index.dim))
    index.add(torch.from_numpy(delta.item_vectors))
    return Retriever(model=retriever.model.grown(items), index=index)


def write_indexes(
    directory: Path, items: ItemCatalogue, users: Users
) -> dict[str, dict[str, float]]:
    """Index the models of a bundle that is being written, if it has many items.

    Args:
        directory: Holds the copied models.
        items: Content and categories of every item row.
        users: Some of their histories are the queries that an index is tuned on.

    Returns:
        Metrics of each index.
    """
    found: dict[str, dict[str, float]] = {}
    if len(items.content) <= COMPARED_UP_TO:
        return found
    (directory / FOLDER).mkdir(exist_ok=True)
    with torch.no_grad():
        for part in (SEQUENCE, ENSEMBLE):
            if (directory / part).exists():
                model = SequenceModel.load(directory / part, items, backend="torch")
                one = OneHistory(model)
                queries = _queries(users, one.query_vector)
                found |= _write_index(directory, part, model.all_item_vectors(), queries)
        if (directory / CONTENT_SIMILARITY).exists():
            similarity = ContentSimilarity.load(directory / CONTENT_SIMILARITY, items.content)
            content = OneContent(similarity)
            queries = _queries(users, lambda rows, _: content.query_vector(rows))
            found |= _write_index(directory, CONTENT_SIMILARITY, similarity.vectors, queries)
    return found


def _queries(users: Users, encode: Callable[[Tensor, Tensor | None], Tensor]) -> Tensor:
    """Encode histories of evenly chosen users, [Q, D]."""
    known = np.flatnonzero(np.diff(users.offsets) > 0)
    chosen = known[np.unique(np.linspace(0, len(known) - 1, NUM_QUERIES).astype(int))]
    found = []
    for row in chosen.tolist():
        rows, times, _ = users.events(row)
        seconds = None if times is None else torch.from_numpy(np.array(times))
        found.append(encode(torch.from_numpy(np.array(rows)), seconds))
    return torch.stack(found)


def _write_index(
    directory: Path, part: str, vectors: Tensor, queries: Tensor
) -> dict[str, dict[str, float]]:
    index, recall = tuned_index(vectors, queries)
    index.save(directory / FOLDER / f"{part}.faiss")
    return {f"index of {part}": {RECALL: recall, "lists": index.effort}}
