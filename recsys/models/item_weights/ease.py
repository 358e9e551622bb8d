"""EASE: a ridge regression of every item on all others, in closed form (Steck, arXiv:1905.03375).

A correlation through a third item is not counted twice, as it is by co-occurrence. With a power of
the recency a history's late items count more, which plain EASE lacks.

The regression is exact among the ``exact_items`` items with the most users. For the others its
inverse is extended by one item at a time, or two for a weight between two (Schur's complement), as
if all further ones had no users in common.

Axes: N item rows, K items of the exact regression, R others, S items of a block,
M kept weights of an item.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.models.configs import EaseWeightsConfig
from recsys.models.item_weights.co_occurrence import (
    MAX_CELLS,
    CoOccurrence,
    Strongest,
    UserItems,
    WeightBlock,
)
from recsys.models.item_weights.model import Ease, HistoryWeights, ItemWeights

BLOCK = 768


def invert_in_place(matrix: Tensor, block: int = BLOCK) -> Tensor:
    """Write the inverse over a symmetric positive definite matrix [K, K] and return it.

    Blocks of rows are swept one after the other (the sweep operator, Goodnight, 1979), so that
    nearly all of the K ** 3 operations are products of matrices, and besides the matrix only two
    of its blocks are in memory; LAPACK's factor and inverse take twice the matrix more.
    """
    size = len(matrix)
    for begin in range(0, size, block):
        end = min(begin + block, size)
        factor, failed = torch.linalg.cholesky_ex(matrix[begin:end, begin:end])
        if failed or not bool(factor.diagonal().isfinite().all()):
            raise ValueError(
                "the matrix is not positive definite in this precision; add more to its diagonal"
            )
        pivot = torch.cholesky_inverse(factor)  # [D, D]
        own = torch.zeros(size, end - begin, dtype=matrix.dtype, device=matrix.device)
        own[:begin], own[end:] = matrix[begin:end, :begin].T, matrix[end:, begin:end]
        solved = own @ pivot  # [K, D]
        for first in range(0, size, block):
            last = min(first + block, size)
            matrix[first:last, :last].addmm_(solved[first:last], own[:last].T, alpha=-1)
        matrix[begin:end, :begin], matrix[end:, begin:end] = solved[:begin].T, solved[end:]
        matrix[begin:end, begin:end] = -pivot
    # Swept by all rows, it is the negative inverse, and only its lower triangle is up to date.
    for begin in range(0, size, block):
        end = min(begin + block, size)
        own = matrix[begin:end, begin:end]
        matrix[begin:end, begin:end] = own.tril() + own.tril(-1).T
        matrix[begin:end, end:] = matrix[end:, begin:end].T
    return matrix.neg_()


Rows = NDArray[np.int64]
BYTES_PER_CELL = 4
NUM_WEIGHTS = 100
"""Strongest weights of each item, by absolute value, that are kept."""


def ease_bytes(num_items: int) -> int:
    """Estimate the memory that an exact regression takes."""
    # The matrix, blocks of its rows while it is swept, and counts of a block.
    return BYTES_PER_CELL * num_items * (num_items + 2_400) + (200 << 20)


def ease_seconds(num_items: int, operations_per_second: float = 1e11) -> float:
    """Estimate the time of an exact regression; 1e11 was measured on two cores of a server."""
    return num_items**3 / operations_per_second


def fits_device(num_items: int, device: torch.device) -> bool:
    """Whether a GPU has the memory for an exact regression, and a few blocks of weights."""
    if device.type != "cuda":
        return False
    free, _ = torch.cuda.mem_get_info(device)
    return ease_bytes(num_items) + (4 << 30) <= free


def check_memory(num_items: int) -> None:
    """Refuse an exact regression that this machine has no memory for."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if ease_bytes(num_items) <= there:
        return
    fits = int((there / BYTES_PER_CELL) ** 0.5 * 0.8)
    raise ValueError(
        f"EASE over {num_items:,} items takes {ease_bytes(num_items) / 2**30:.1f} GiB of memory, "
        f"this machine has {there / 2**30:.1f}; set ease.exact_items to at most {fits}, others "
        "then extend its regression one at a time"
    )


def most_frequent(co_occurrence: CoOccurrence, limit: int) -> Rows:
    """List the items with the most users, ascending, [K]."""
    counts = co_occurrence.items.counts()
    counts[0] = 0
    order = np.lexsort((np.arange(len(counts)), -counts))[:limit]
    found: Rows = np.sort(order[counts[order] > 0])
    return found


def shared_users(co_occurrence: CoOccurrence, item_rows: Rows) -> Tensor:
    """Count the users that items share with each other, [K, K] float32."""
    matrix = torch.empty(len(item_rows), len(item_rows))
    done = 0
    for rows, shared in co_occurrence.blocks(item_rows, item_rows):
        matrix[done : done + len(rows)] = torch.from_numpy(shared)
        done += len(rows)
    return matrix


def ease_model(
    co_occurrence: CoOccurrence,
    exact: Rows,
    shared: Tensor,
    config: EaseWeightsConfig,
    *,
    extends: bool = True,
) -> ItemWeights:
    """Regress by the first of each setting and keep the strongest weights.

    Args:
        exact: Items that are regressed on all others of them, ascending, [K].
        shared: Their users in common, [K, K] float32; its memory is used up, its device computes.
        extends: Whether other items have weights too.
    """
    kept = Strongest(co_occurrence.num_item_rows, NUM_WEIGHTS)
    shared.diagonal().add_(config.l2[0])
    inverse = invert_in_place(shared)
    every = most_frequent(co_occurrence, config.extended_items) if extends else exact
    others = np.setdiff1d(every, exact)
    for block in _weights(co_occurrence, exact, others, inverse, config.l2[0]):
        kept.add(block)
    history = HistoryWeights(power=config.history_power[0], distinct=True)
    return ItemWeights(kept.table(), history, asdict(config))


def _weights(
    co_occurrence: CoOccurrence, exact: Rows, others: Rows, inverse: Tensor, l2: float
) -> Iterator[WeightBlock]:
    """Weigh the items by blocks, first from exact ones, then from others.

    Args:
        exact: [K].
        others: [R].
        inverse: Of their matrix with ``l2``, [K, K].
    """
    device = inverse.device
    shared = _shared_with(co_occurrence, others, exact).to(device)  # [R, K]
    both = np.concatenate([exact, others])
    columns = torch.from_numpy(both).to(device)
    diagonal = inverse.diagonal()
    size = max(1, MAX_CELLS // max(1, len(columns)))
    for begin in range(0, len(exact), size):
        rows = inverse[begin : begin + size]  # [S, K]
        weights = torch.cat([-rows / diagonal, torch.sparse.mm(shared, rows.T).T], dim=1)
        weights[torch.arange(len(rows)), begin + torch.arange(len(rows))] = 0
        yield WeightBlock(exact[begin : begin + size], columns, weights)
    own = torch.from_numpy(co_occurrence.items.counts().astype(np.float32)).to(device)
    for rows_of_block, counts in co_occurrence.blocks(others, both):
        count = torch.from_numpy(counts).to(device)
        to_exact, to_others = count[:, : len(exact)], count[:, len(exact) :]
        explained = torch.sparse.mm(to_exact.to_sparse(), inverse)  # [S, K]
        rest = own[rows_of_block] + l2 - (explained * to_exact).sum(1)  # [S]
        rest = rest.clamp(min=l2 * 0.5)[:, None]
        exactly = explained / rest / (diagonal + explained.square() / rest)
        between = to_others - torch.sparse.mm(shared, explained.T).T
        between[torch.arange(len(count)), np.searchsorted(others, rows_of_block)] = 0
        weights = torch.cat([exactly, between / rest], dim=1)
        yield WeightBlock(rows_of_block, columns, weights)


def _shared_with(co_occurrence: CoOccurrence, others: Rows, exact: Rows) -> Tensor:
    """Count the users that other items share with exact ones, [R, K] sparse."""
    parts = [torch.empty(0, len(exact)).to_sparse()]
    for _, counts in co_occurrence.blocks(others, exact):
        parts.append(torch.from_numpy(counts).to_sparse())
    return torch.cat(parts).coalesce()


L2 = 200.0
"""L2 penalty, in events of an item."""
MAX_ITEMS = 4096
"""Items with weights, those with the most events; memory and time grow with its square and cube:
64 MiB and 3 seconds."""


def fit_ease(
    user_rows: Rows, item_rows: Rows, num_item_rows: int, l2: float = L2, max_items: int = MAX_ITEMS
) -> Ease:
    """Regress every item on the others; repeated items of a user count once.

    Args:
        user_rows: Of each event, [E].
        item_rows: Of each event, [E]; row 0 is no item.
    """
    counts = np.bincount(item_rows, minlength=num_item_rows)
    counts[0] = 0
    order = np.lexsort((np.arange(num_item_rows), -counts))[:max_items]
    kept = np.sort(order[counts[order] > 0])
    by_user = np.argsort(user_rows, kind="stable")
    ends = np.cumsum(np.unique(user_rows, return_counts=True)[1])
    starts = np.concatenate([[0], ends])[:-1].astype(np.int64)
    taken = UserItems.of(item_rows[by_user], starts, ends, num_item_rows, len(by_user))
    # Counts are exact in float32.
    gram = shared_users(CoOccurrence(taken), kept).double()
    gram.diagonal().add_(l2)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram))
    weights = -inverse / inverse.diagonal()[None, :]
    weights.fill_diagonal_(0)
    return Ease(torch.from_numpy(kept), weights.float().cpu(), num_item_rows)
