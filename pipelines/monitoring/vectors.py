"""Vectors and codes of the bundle that is served, by the ids of items and users."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

if TYPE_CHECKING:
    from serving.bundle.load import Bundle

Numbers = NDArray[np.float64]
Rows = NDArray[np.int64]
MAX_HISTORY = 50
QUERIES = 512
"""Users that are encoded at a time."""


@dataclass(frozen=True, kw_only=True)
class ServedVectors:
    """Vectors of a bundle, of length 1; zeros for unknown items and users."""

    version: str
    rows: Mapping[str, int]
    """Row of each item id."""
    item_vectors: Numbers
    user_vectors_of: Callable[[list[str]], Numbers]
    codes: Rows | None = None
    """Codes by item row, -1 without."""
    known_until: date | None = None
    """Day of the newest event that it was trained on: agreement counts for later days alone."""

    def item_rows(self, item_ids: pl.Series) -> Rows:
        """Find items, [R]; -1 for unknown ones."""
        return np.array([self.rows.get(one, -1) for one in item_ids.to_list()], np.int64)

    def user_vectors(self, user_ids: pl.Series) -> Numbers:
        """Look up the users' vectors, [R, D]; zeros for unknown users."""
        distinct = user_ids.unique(maintain_order=True).to_list()
        place = {one: number for number, one in enumerate(distinct)}
        vectors = self.user_vectors_of(distinct)
        found: Numbers = vectors[[place[one] for one in user_ids.to_list()]]
        return found


def unit(vectors: Numbers) -> Numbers:
    """Scale vectors to length 1; zeros stay."""
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    found: Numbers = np.divide(vectors, length, out=np.zeros_like(vectors), where=length > 0)
    return found


def vectors_of_bundle(path: Path) -> ServedVectors | None:
    """Read the served bundle; None where nothing is served or it has no two-tower."""
    if not path.exists():
        return None
    from serving.bundle.item_index import ITEM_VECTORS
    from serving.bundle.load import load_bundle

    bundle = load_bundle(path)
    if bundle.retriever is None:
        return None
    newest = bundle.users.newest_time
    # The index is served; the tower's own vectors are what queries fit to.
    vectors = np.load(bundle.directory / ITEM_VECTORS, allow_pickle=False)
    ids = list(bundle.catalogue.item_ids)[: len(vectors)]
    codes = None if bundle.semantic_ids is None else bundle.semantic_ids.codes.numpy()
    cache: dict[str, Numbers] = {}

    def of_users(user_ids: list[str]) -> Numbers:
        fresh = [one for one in user_ids if one not in cache]
        for begin in range(0, len(fresh), QUERIES):
            part = fresh[begin : begin + QUERIES]
            cache.update(zip(part, encoded(bundle, part), strict=True))
        return np.array([cache[one] for one in user_ids])

    return ServedVectors(
        version=bundle.version,
        rows={one: row for row, one in enumerate(ids) if row},
        item_vectors=unit(vectors.astype(np.float64)),
        user_vectors_of=of_users,
        codes=None if codes is None else codes[: len(ids)].astype(np.int64),
        known_until=None if newest is None else datetime.fromtimestamp(newest, UTC).date(),
    )


def encoded(bundle: Bundle, user_ids: list[str]) -> Numbers:
    """Encode users by the two-tower with what the bundle knows of them, [R, D]."""
    import torch

    from recsys.data.batch import Jagged, JaggedBatch
    from serving.bundle.users import Users

    assert bundle.retriever is not None
    users: Users = bundle.users
    rows = np.array([users.row_of(one) or 0 for one in user_ids], np.int64)
    features = {
        "history": Jagged.from_lists(
            [users.history(row)[-MAX_HISTORY:].tolist() for row in rows.tolist()]
        )
    }
    for name, values in users.features.items():
        features[f"user.{name}"] = Jagged.from_lists([[one] for one in values[rows].tolist()])
    features["user"] = Jagged.from_lists([[one] for one in rows.tolist()])
    for name in bundle.context_features:
        features[f"context.{name}"] = Jagged.from_lists([[0]] * len(rows))
    with torch.no_grad():
        found = bundle.retriever.model.query_vectors(JaggedBatch(features)).double().numpy()
    found[rows == 0] = 0.0
    return np.asarray(found, np.float64)
