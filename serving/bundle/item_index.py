"""Indexes of the vectors by which sequence models and content find items, of large catalogues.

    index/sequence.faiss, index/ensemble.faiss, index/content_similarity.faiss    each with its JSON

Up to `COMPARED_UP_TO` item rows a request compares every vector, which is exact and takes less time
than a search. Beyond, a search looks into the fewest lists that find 99% of the best 100 for users'
histories (``tuned_index``). The manifest's metrics have the recall.

Axes: N item rows, D width of a model's item vectors, Q queries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from recsys.models.content_similarity import ContentSimilarity
from recsys.models.sequence.model import SequenceModel
from recsys.retrieval.faiss_index import FaissIndex
from recsys.retrieval.faiss_library import FaissIndexConfig
from serving.bundle.arrays import check_rows, reading
from serving.bundle.history_models import CONTENT_SIMILARITY, ENSEMBLE, SEQUENCE
from serving.bundle.manifest import BundleManifest

FOLDER = "index"
ItemIndexes = Mapping[str, FaissIndex]
"""Indexes by part."""
COMPARED_UP_TO = FaissIndexConfig().flat_max_rows


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
    indexes: ItemIndexes, vectors: Mapping[str, Callable[[], Tensor]]
) -> dict[str, FaissIndex]:
    """Append the rows that deltas add to copies of the indexes."""
    found: dict[str, FaissIndex] = {}
    for part, index in indexes.items():
        found[part] = index.copy()
        found[part].add(vectors[part]()[index.num_item_rows :])
    return found
