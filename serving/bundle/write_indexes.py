"""Index the item vectors of a bundle that is being written, if it has many items.

Axes: N item rows, D width of item vectors, Q queries.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import serving.bundle.item_index as item_index
from recsys.models.content_similarity import ContentSimilarity
from recsys.models.content_similarity import OneContentHistory as OneContent
from recsys.models.item_tower import ItemCatalogue
from recsys.models.sequence.model import SequenceModel
from recsys.models.sequence.one import OneHistory
from recsys.retrieval.index_recall import tuned_index
from serving.bundle.history_models import CONTENT_SIMILARITY, ENSEMBLE, SEQUENCE
from serving.bundle.users import Users

NUM_QUERIES = 300
RECALL = "recall@100"


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
    if len(items.content) <= item_index.COMPARED_UP_TO:
        return found
    (directory / item_index.FOLDER).mkdir(exist_ok=True)
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
    index.save(directory / item_index.FOLDER / f"{part}.faiss")
    return {f"index of {part}": {RECALL: recall, "lists": index.effort}}
