"""Wins: which model ranks a held-out item best, pair by pair and slice by slice.

A model finds an item if its rank is within ``depth``; ranks beyond count as not found, so that 900
against 1,100 is no win.

Axes: M held-out items, A models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from recsys.data.batch import Jagged
from recsys.evaluation.slices import Slice

RANK = "rank_"
Ranks = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two models over the same held-out items, as shares of them."""

    model: str
    other: str
    better: float
    """Share for which ``model`` ranks the item better."""
    equal: float
    """Share of ties, and of items that neither finds."""


@dataclass(frozen=True, kw_only=True)
class SliceWinners:
    """Who ranks the held-out items of one slice best, as shares that sum to 1."""

    group: str
    name: str
    num_targets: int
    alone: dict[str, float]
    """By model: it alone ranks the item best."""
    shared: float
    """Several models rank it equally well."""
    nobody: float
    """No model finds it."""


@dataclass(frozen=True, kw_only=True)
class Wins:
    """Everything about who wins, for one split of one tie order."""

    depth: int
    models: tuple[str, ...]
    num_targets: int
    pairs: list[Pair]
    slices: list[SliceWinners]


def models_of(columns: Sequence[str]) -> tuple[str, ...]:
    """Name the models of a per-user table by its columns."""
    return tuple(name.removeprefix(RANK) for name in columns if name.startswith(RANK))


def targets_of(table: Path) -> tuple[np.ndarray, Jagged]:
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


def pairs_of(ranks: Ranks, models: Sequence[str]) -> list[Pair]:
    """Compare every model with every other one."""
    return [
        Pair(
            model=model,
            other=other,
            better=float((ranks[:, place] < ranks[:, against]).mean()),
            equal=float((ranks[:, place] == ranks[:, against]).mean()),
        )
        for (place, model), (against, other) in permutations(enumerate(models), 2)
    ]


def winners_of(
    ranks: Ranks, models: Sequence[str], depth: int, group: str, name: str
) -> SliceWinners:
    """Count who ranks these held-out items best; an empty slice has no shares."""
    if not len(ranks):
        return SliceWinners(group=group, name=name, num_targets=0, alone={}, shared=0, nobody=0)
    best = ranks.min(axis=1, keepdims=True)
    found = best[:, 0] <= depth
    is_best = ranks == best  # [M, A]
    alone = found & (is_best.sum(axis=1) == 1)
    return SliceWinners(
        group=group,
        name=name,
        num_targets=len(ranks),
        alone={
            model: float((alone & is_best[:, place]).mean()) for place, model in enumerate(models)
        },
        shared=float((found & ~alone).mean()),
        nobody=float((~found).mean()),
    )


def wins_of(ranks: Ranks, models: Sequence[str], depth: int, slices: Sequence[Slice]) -> Wins:
    """Count who wins over all held-out items and in each slice.

    Args:
        ranks: As `read_ranks` gives them, [M, A] with M >= 1.
        slices: Over the same held-out items in the same order.
    """
    parts = [winners_of(ranks, models, depth, "all", "all")]
    for part in slices:
        members = ranks[part.targets.numpy()]
        parts.append(winners_of(members, models, depth, part.group, part.name))
    return Wins(
        depth=depth,
        models=tuple(models),
        num_targets=len(ranks),
        pairs=pairs_of(ranks, models),
        slices=parts,
    )
