"""Which model ranks a held-out item best, pair by pair and slice by slice.

A model finds an item if its rank is within ``depth``; ranks beyond count as not found, so that 900
against 1,100 is no win.

Axes: M held-out items, A models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from recsys.data.batch import Jagged
from recsys.evaluation.slices import Slice

RANK = "rank_"
Ranks = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Wins:
    """Wins on one split of one tie order, as shares of its held-out items."""

    depth: int
    pairs: Mapping[str, Mapping[str, float]]
    """Share that a model ranks better than another one, by model and other model."""
    slices: Sequence[Mapping[str, Any]]
    """``group``, ``name``, ``num_targets``; shares ``alone`` by model, ``shared``, ``missed``. The
    first slice is of all items."""


def models_of(columns: Sequence[str]) -> tuple[str, ...]:
    """List the models of a per-user table by its columns."""
    return tuple(name.removeprefix(RANK) for name in columns if name.startswith(RANK))


def read_targets(table: Path) -> tuple[np.ndarray, Jagged]:
    """Read the users of a per-user table, [U], and the held-out items of each."""
    frame = pl.read_parquet(table, columns=["user_row", "item_row"])
    users, counts = np.unique(frame["user_row"].to_numpy(), return_counts=True)
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]))
    return users, Jagged(torch.from_numpy(frame["item_row"].to_numpy().copy()), offsets)


def read_ranks(table: Path, models: Sequence[str], depth: int) -> Ranks:
    """Read each model's rank of each held-out item, depth + 1 for those beyond, [M, A]."""
    beyond = depth + 1
    columns = [
        pl.col(f"{RANK}{model}").fill_null(beyond).clip(1, beyond).cast(pl.Int64)
        for model in models
    ]
    ranks: Ranks = pl.scan_parquet(table).select(columns).collect().to_numpy()
    return ranks


def _winners(
    ranks: Ranks, models: Sequence[str], depth: int, group: str, name: str
) -> dict[str, Any]:
    """Share the held-out items of a slice among the models; an empty slice has no shares."""
    part = {"group": group, "name": name, "num_targets": len(ranks)}
    if not len(ranks):
        return {**part, "alone": {}, "shared": 0.0, "missed": 0.0}
    best = ranks.min(axis=1, keepdims=True)
    found = best[:, 0] <= depth
    is_best = ranks == best  # [M, A]
    alone = found & (is_best.sum(axis=1) == 1)
    shares = (alone[:, None] & is_best).mean(axis=0).tolist()
    return {
        **part,
        "alone": dict(zip(models, shares, strict=True)),
        "shared": float((found & ~alone).mean()),
        "missed": float((~found).mean()),
    }


def count_wins(ranks: Ranks, models: Sequence[str], depth: int, slices: Sequence[Slice]) -> Wins:
    """Count wins over all held-out items and in each slice.

    Args:
        ranks: As `read_ranks` returns them, [M, A] with M >= 1.
        slices: Over the same held-out items in the same order.
    """
    pairs = {
        model: {
            other: float((ranks[:, place] < ranks[:, against]).mean())
            for against, other in enumerate(models)
            if other != model
        }
        for place, model in enumerate(models)
    }
    named = [("all", "all", ranks)]
    named += [(part.group, part.name, ranks[part.targets.numpy()]) for part in slices]
    parts = [_winners(own, models, depth, group, name) for group, name, own in named]
    return Wins(depth=depth, pairs=pairs, slices=parts)
