"""Trie of semantic IDs: which codes may follow a prefix, and which item an ID is.

The leaves are the IDs in ascending order, so the items below a node are one range of leaves. The
first levels are dense (a node is its prefix, read as a number); after them a level lists its nodes
by prefix and says where each one's children begin. A beam steps from state to state, one code a
level, and never walks a prefix again. Nothing here waits for the device or has a shape that depends
on data.

Axes: N leaves (items with an ID), L levels, K codes of a level, B states, R requests, M most
children of a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple, Self

import torch
from torch import Tensor

from recsys.semantic_ids.codes import ItemCodes, SemanticIds, id_keys

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


DEAD = -1
"""State of a prefix that no item has; nothing may follow it."""


class Restriction(NamedTuple):
    """Parts of a trie that the item masks of R requests allow.

    ``head`` has the allowed next codes of each dense level, ``tail`` marks in each other level
    the children with an allowed leaf, [R, children + M] bool, padded as they are.
    """

    head: tuple[Tensor, ...]
    tail: tuple[Tensor, ...]


class Trie:
    """An immutable trie on one device.

    A state is an int64 that is only meaningful together with its level: the length of the prefix.
    """

    def __init__(
        self, keys: Tensor, leaf_rows: Tensor, level_sizes: Sequence[int], *, num_item_rows: int
    ) -> None:
        """Take IDs as numbers [N] in ascending order and their item rows [N]; see ``build``."""
        self.level_sizes = tuple(level_sizes)
        self.num_item_rows = num_item_rows
        self._leaf_rows = leaf_rows.to(torch.int32)
        self._tables = build_tables(keys, self.level_sizes)
        # The leaves are the children of the last level: one copy serves both.
        tail = self._tables.tail
        self._leaf_keys = tail[-1].keys[: len(keys)] if tail else keys

    @classmethod
    def build(
        cls,
        codes: Tensor,
        level_sizes: Sequence[int],
        *,
        item_rows: Tensor | None = None,
        num_item_rows: int | None = None,
    ) -> Self:
        """Build from unique codes [N, L] in any order, on their device.

        Args:
            item_rows: Row of each, [N]; None means 1 .. N.
        """
        rows = torch.arange(1, len(codes) + 1) if item_rows is None else item_rows
        rows = rows.to(codes.device, torch.int32)
        keys, order = id_keys(codes, level_sizes).sort()
        size = num_item_rows or (int(rows.max()) + 1 if len(rows) else 1)
        return cls(keys, rows[order], level_sizes, num_item_rows=size)

    @classmethod
    def of_items(cls, ids: ItemCodes | SemanticIds) -> Self:
        """Build from the codes of every item row, -1 where an item has none."""
        rows = (ids.codes[:, 0] >= 0).nonzero()[:, 0]
        size = len(ids.codes)
        return cls.build(ids.codes[rows], ids.level_sizes, item_rows=rows, num_item_rows=size)

    @property
    def num_levels(self) -> int:
        return len(self.level_sizes)

    @property
    def num_items(self) -> int:
        return len(self._leaf_keys)

    @property
    def device(self) -> torch.device:
        return self._leaf_keys.device

    @property
    def num_head_levels(self) -> int:
        """Levels that are dense."""
        return len(self._tables.head)

    def to(self, device: torch.device | str) -> Self:
        """Copy to a device."""
        return type(self)(
            self._leaf_keys.to(device),
            self._leaf_rows.to(device),
            self.level_sizes,
            num_item_rows=self.num_item_rows,
        )

    def start(self, batch_size: int) -> Tensor:
        """Return the state before the first code, [B]."""
        return torch.zeros(batch_size, dtype=torch.int64, device=self.device)

    def mask(
        self,
        states: Tensor,
        level: int,
        restriction: Restriction | None = None,
        requests: Tensor | None = None,
    ) -> Tensor:
        """Compute which codes of a level lead to an allowed item.

        Args:
            states: After ``level`` codes, [B].
            requests: Which request of the restriction a state belongs to, [B] in [0, R); None
                where R is 1.

        Returns:
            [B, K] bool; all False for a dead state.
        """
        ready = self._tables.masks[level]
        if restriction is None and ready is not None:
            return ready[states]  # -1, a dead state, is the last row
        if restriction is None or level >= self.num_head_levels:
            return self._tail_mask(states, level, restriction, requests)
        row = states.clamp(min=0)
        if requests is not None:
            row = row + requests * prod(self.level_sizes[:level])
        codes = restriction.head[level].index_select(0, row)
        # As bytes: a CPU spreads booleans over a row four times slower.
        return codes.view(torch.uint8).mul_((states >= 0)[:, None]).view(torch.bool)

    def _tail_mask(
        self, states: Tensor, level: int, restriction: Restriction | None, requests: Tensor | None
    ) -> Tensor:
        size = self.level_sizes[level]
        index = level - self.num_head_levels
        table = self._tables.tail[index]
        # Index -1, a dead state, is the end of the table: the padding behind all children.
        at = table.first_child[states][:, None] + table.window  # [B, M]
        keys = table.keys.index_select(0, at.view(-1)).view_as(at)
        # Children of later nodes, and the padding, come out as size or more.
        codes = keys.sub_(self._first_key(states, level)[:, None]).clamp_(max=size)
        if restriction is None:
            live = codes < size
        else:
            of_request = restriction.tail[index]
            if requests is not None:
                at = at + requests[:, None] * of_request.shape[1]
            live = of_request.view(-1).index_select(0, at.view(-1)).view_as(at)
        allowed = torch.zeros(len(states), size + 1, dtype=torch.bool, device=self.device)
        return allowed.scatter_(1, codes, live)[:, :size]

    def _first_key(self, states: Tensor, level: int) -> Tensor:
        """Compute the key that each state's child with code 0 would have, [B]."""
        index = level - self.num_head_levels
        prefix = states if index == 0 else self._tables.tail[index - 1].keys[states]
        return prefix * self.level_sizes[level]

    def step(self, states: Tensor, codes: Tensor, level: int) -> Tensor:
        """Take one code each, [B]: states after ``level + 1`` codes, dead where no item has them.

        Codes must be in [0, K).
        """
        if level < self.num_head_levels:
            following = states.clamp(min=0) * self.level_sizes[level] + codes
            exists = self._tables.head[level].view(-1)[following] & (states >= 0)
            # torch.where would copy the number to the device.
            return following.masked_fill_(~exists, DEAD)
        keys = self._tables.tail[level - self.num_head_levels].keys
        wanted = self._first_key(states, level) + codes
        at = torch.searchsorted(keys, wanted)
        return at.masked_fill_((keys[at] != wanted) | (states < 0), DEAD)

    def item_rows(self, states: Tensor) -> Tensor:
        """Return the items of states after all L codes, [B] int64; 0 for dead ones."""
        if self.num_items == 0:
            return torch.zeros_like(states)
        leaf = states.clamp(min=0)
        if self.num_head_levels == self.num_levels:
            leaf = self._tables.head_start[leaf].long()
        return self._leaf_rows[leaf].long().masked_fill(states < 0, 0)

    def restrict_rows(self, allowed: Tensor) -> Restriction:
        """Compose what each request may show, [R, num_item_rows] bool, with the trie: O(N) each."""
        bits = torch.stack([of_rows[self._leaf_rows] for of_rows in allowed])  # [R, N]
        before = torch.zeros(
            len(allowed), self.num_items + 1, dtype=torch.int32, device=self.device
        )
        torch.cumsum(bits, 1, dtype=torch.int32, out=before[:, 1:])
        edges = torch.stack([count[self._tables.head_start] for count in before])
        head = head_tables(edges, self.level_sizes[: self.num_head_levels])
        tail = tuple(live_children(level, bits, before) for level in self._tables.tail)
        return Restriction(head, tail)
