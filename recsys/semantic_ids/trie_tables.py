"""Tables of a trie of semantic IDs, made of its leaves in ascending order; see ``trie.py``.

Axes: N leaves (items with an ID), L levels, K codes of a level, P dense prefixes, R requests, M
most children of a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from recsys.semantic_ids.codes import check_level_sizes

HEAD_CELLS_PER_ITEM = 2
"""Levels are dense while there are at most this many prefixes an item, or for the first level."""
MASK_CELLS = 1 << 25
"""Levels of at most this many nodes times codes have their masks ready, a byte each."""


class TailLevel(NamedTuple):
    """A level after the dense ones: where its nodes' children begin, and the children, in order.

    The keys are padded, so that a window of M never runs past the end. The padding's keys
    are so large that they are children of no node, also not those of the padding one level up.
    """

    first_child: Tensor
    """Position of each node's first child, [nodes + 1] int32."""
    window: Tensor
    """0 to M - 1, M being the most children of a node, int32."""
    keys: Tensor
    """Each child's prefix read as a number, [children + M] int64."""
    leaf_start: Tensor
    """Each child's first leaf, and the end, [children + 1] int32."""


class TrieTables(NamedTuple):
    """All levels; ``tail[0]`` is the level after the dense ones."""

    head: tuple[Tensor, ...]
    """Which codes of each dense level follow each prefix, [P, K] bool."""
    head_start: Tensor
    """First leaf of each prefix that is dense to the end, [P + 1] int32."""
    tail: tuple[TailLevel, ...]
    masks: tuple[Tensor | None, ...]
    """Which codes follow each node of a level, and at the end none for a dead one, [nodes + 1, K]
    bool; None where that takes more than ``MASK_CELLS``."""


def build_tables(leaf_keys: Tensor, level_sizes: Sequence[int]) -> TrieTables:
    """Build from IDs read as numbers, ascending, [N]."""
    limit = max(level_sizes[0], HEAD_CELLS_PER_ITEM * len(leaf_keys))
    num_levels = len(level_sizes)
    depth = max(d for d in range(1, num_levels + 1) if prod(level_sizes[:d]) <= limit)
    edges = torch.arange(prod(level_sizes[:depth]) + 1, device=leaf_keys.device)
    head_start = torch.searchsorted(leaf_keys, edges * prod(level_sizes[depth:])).int()
    tail: list[TailLevel] = []
    parent_start, pad_key = head_start, prod(level_sizes[:depth])
    for next_depth in range(depth + 1, num_levels + 1):
        pad_key = (pad_key + 1) * level_sizes[next_depth - 1]
        level = _tail_level(leaf_keys, parent_start, prod(level_sizes[next_depth:]), pad_key)
        tail.append(level)
        parent_start = level.leaf_start
    head = head_tables(head_start[None], level_sizes[:depth])
    masks = [torch.cat([table, torch.zeros_like(table[:1])]) for table in head]
    ready = (_ready_masks(*pair) for pair in zip(tail, level_sizes[depth:], strict=True))
    return TrieTables(head, head_start, tuple(tail), (*masks, *ready))


def _ready_masks(level: TailLevel, size: int) -> Tensor | None:
    num_nodes, num_children = len(level.first_child) - 1, len(level.leaf_start) - 1
    if (num_nodes + 1) * size > MASK_CELLS:
        return None
    children = level.first_child.diff().long()
    nodes = torch.arange(num_nodes, device=children.device)
    node = torch.repeat_interleave(nodes, children, output_size=num_children)
    code = level.keys[:num_children] % size
    masks = torch.zeros(num_nodes + 1, size, dtype=torch.bool, device=children.device)
    masks.view(-1)[node * size + code] = True
    return masks


def head_tables(before: Tensor, head_sizes: Sequence[int]) -> tuple[Tensor, ...]:
    """Compute which codes follow each dense prefix.

    Args:
        before: Allowed leaves in front of each edge between prefixes, [R, P + 1].

    Returns:
        For each level, [R * prefixes, K] bool.
    """
    live = before[:, 1:] > before[:, :-1]
    tables = []
    for size in reversed(head_sizes):
        table = live.reshape(-1, size)
        tables.append(table)
        live = table.any(1)
    return tuple(reversed(tables))


def live_children(level: TailLevel, bits: Tensor, before: Tensor) -> Tensor:
    """Compute which children lead to an allowed leaf.

    Args:
        bits: Which leaves are allowed, [R, N] bool.
        before: Allowed leaves in front of each leaf, [R, N + 1].

    Returns:
        [R, children + M] bool, False for the padding.
    """
    num_children = len(level.leaf_start) - 1
    live = torch.zeros(len(bits), len(level.keys), dtype=torch.bool, device=bits.device)
    if num_children == bits.shape[1]:
        live[:, :num_children] = bits
        return live
    for out, count in zip(live, before, strict=True):
        edges = count[level.leaf_start]
        torch.gt(edges[1:], edges[:-1], out=out[:num_children])
    return live


def _tail_level(
    leaf_keys: Tensor, parent_start: Tensor, ids_per_child: int, pad_key: int
) -> TailLevel:
    device = leaf_keys.device
    prefix = leaf_keys // ids_per_child
    is_first = torch.ones_like(prefix, dtype=torch.bool)
    is_first[1:] = prefix[1:] != prefix[:-1]
    starts = is_first.nonzero().flatten()
    count = len(starts)
    child_of_leaf = torch.cat([is_first.cumsum(0) - 1, torch.tensor([count], device=device)])
    first_child = child_of_leaf[parent_start.long()].int()
    most = max(1, int(first_child.diff().max())) if len(first_child) > 1 else 1
    keys = torch.full((count + most,), pad_key, device=device)
    keys[:count] = prefix[starts]
    leaf_start = torch.full((count + 1,), len(leaf_keys), dtype=torch.int32, device=device)
    leaf_start[:count] = starts
    window = torch.arange(most, dtype=torch.int32, device=device)
    return TailLevel(first_child, window, keys, leaf_start)


def check_codes(codes: Tensor, level_sizes: Sequence[int], item_rows: Tensor) -> None:
    """Refuse codes [N, L] of other levels or out of range, and rows that are not one each."""
    check_level_sizes(level_sizes)
    if codes.ndim != 2 or codes.shape[1] != len(level_sizes) or codes.is_floating_point():
        raise ValueError(
            f"codes {tuple(codes.shape)} {codes.dtype} must be whole numbers, [N, "
            f"{len(level_sizes)}]: a column for each of the levels {tuple(level_sizes)}"
        )
    if item_rows.shape != (len(codes),):
        raise ValueError(
            f"item_rows {tuple(item_rows.shape)} must name one row for each of {len(codes)} codes"
        )
    wrong = ((codes < 0) | (codes >= torch.tensor(level_sizes, device=codes.device))).any(1)
    if wrong.any():
        at = int(wrong.int().argmax())
        raise ValueError(
            f"item row {int(item_rows[at])} has codes {codes[at].tolist()}; each must be in "
            f"[0, {tuple(level_sizes)}). Were they made with other level sizes?"
        )


def check_leaves(keys: Tensor, rows: Tensor, num_ids: int, num_item_rows: int) -> None:
    """Refuse leaves that are out of order or range, and an ID or a row that occurs twice."""
    if len(keys) != len(rows) or keys.dtype != torch.int64 or keys.ndim != 1:
        raise ValueError(f"{len(keys)} keys {keys.dtype} and {len(rows)} item rows do not fit")
    if len(keys) == 0:
        return
    if int(keys[0]) < 0 or int(keys[-1]) >= num_ids or bool((keys[1:] < keys[:-1]).any()):
        raise ValueError(f"keys must ascend within [0, {num_ids})")
    repeated = keys[1:] == keys[:-1]
    if repeated.any():
        at = int(repeated.int().argmax())
        raise ValueError(
            f"item rows {int(rows[at])} and {int(rows[at + 1])} share one semantic ID "
            f"({int(repeated.sum())} such pairs); resolve_collisions makes IDs unique"
        )
    low, high = int(rows.min()), int(rows.max())
    if low < 1 or high >= num_item_rows:
        raise ValueError(
            f"item rows {low} to {high} must be in [1, {num_item_rows}); row 0 is the padding"
        )
    counts = torch.bincount(rows, minlength=num_item_rows)
    if int(counts.max()) > 1:
        raise ValueError(f"item row {int(counts.argmax())} has {int(counts.max())} semantic IDs")
