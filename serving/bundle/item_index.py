"""Indexes of the vectors by which sequence models and content find items, of large catalogues.

    index/sequence.faiss, index/ensemble.faiss, index/content_similarity.faiss    each with its JSON

Up to `COMPARED_UP_TO` item rows a request compares every vector, which is exact and takes less time
than a search. Beyond, a search looks into the fewest lists that find 99% of the best 100 for users'
histories (``tuned_index``). The manifest's metrics say what is found.

Axes: N item rows, D width of a model's item vectors, Q queries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from recsys.models.content_similarity import ContentSimilarity
from recsys.models.content_similarity import OneHistory as OneContent
from recsys.models.item_tower import ItemCatalogue
from recsys.models.sequence.model import SequenceModel
from recsys.models.sequence.one import OneHistory
from recsys.retrieval.faiss_build import FaissIndexConfig
from recsys.retrieval.faiss_index import FaissIndex
from recsys.retrieval.index_recall import tuned_index
from serving.bundle.arrays import check_rows, reading
from serving.bundle.history_models import CONTENT_SIMILARITY, ENSEMBLE, SEQUENCE
from serving.bundle.manifest import BundleManifest
from serving.bundle.users import Users

FOLDER = "index"
COMPARED_UP_TO = FaissIndexConfig().flat_max_rows
NUM_QUERIES = 300
RECALL = "recall@100"


def write_item_indexes(
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
                found |= _write(directory, part, model.all_item_vectors(), queries)
        if (directory / CONTENT_SIMILARITY).exists():
            similarity = ContentSimilarity.load(directory / CONTENT_SIMILARITY, items.content)
            content = OneContent(similarity)
            queries = _queries(users, lambda rows, _: content.query_vector(rows))
            found |= _write(directory, CONTENT_SIMILARITY, similarity.vectors, queries)
    return found


def _queries(users: Users, encode: Callable[[Tensor, Tensor | None], Tensor]) -> Tensor:
    """Encode histories of evenly chosen users, [Q, D]."""
    known = np.flatnonzero(np.diff(users.offsets) > 0)
    chosen = known[np.unique(np.linspace(0, len(known) - 1, NUM_QUERIES).astype(int))]
    found = []
    for row in chosen.tolist():
        times = users.history_times(row)
        rows = torch.from_numpy(np.array(users.history(row)))
        found.append(encode(rows, None if times is None else torch.from_numpy(np.array(times))))
    return torch.stack(found)


def _write(
    directory: Path, part: str, vectors: Tensor, queries: Tensor
) -> dict[str, dict[str, float]]:
    index, recall = tuned_index(vectors, queries)
    index.save(directory / FOLDER / f"{part}.faiss")
    return {f"index of {part}": {RECALL: recall, "lists": index.effort}}


def compared(
    sequence: SequenceModel | None,
    ensemble: SequenceModel | None,
    content: ContentSimilarity | None,
) -> dict[str, Callable[[], Tensor]]:
    """Return the functions that give each part's item vectors, [N, D]."""
    found: dict[str, Callable[[], Tensor]] = {
        part: model.all_item_vectors
        for part, model in ((SEQUENCE, sequence), (ENSEMBLE, ensemble))
        if model is not None
    }
    if content is not None:
        found[CONTENT_SIMILARITY] = lambda: content.vectors
    return found


def load_item_indexes(
    directory: Path, manifest: BundleManifest, vectors: Mapping[str, Callable[[], Tensor]]
) -> dict[str, FaissIndex]:
    """Load the indexes that a bundle has, by part.

    Args:
        vectors: Of ``compared``.
    """
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
    indexes: Mapping[str, FaissIndex], vectors: Mapping[str, Callable[[], Tensor]]
) -> dict[str, FaissIndex]:
    """Append the rows that deltas add to copies of the indexes."""
    found: dict[str, FaissIndex] = {}
    for part, index in indexes.items():
        found[part] = index.copy()
        found[part].add(vectors[part]()[index.num_item_rows :])
    return found
