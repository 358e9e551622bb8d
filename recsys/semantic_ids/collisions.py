"""Make codes unique: move items to the nearest free code.

A prefix that has free IDs is kept. Level by level, a code takes as many items as it has free
IDs, nearest first; the others move to their next nearest code with free IDs. Items of codes that
are not full keep all codes. It succeeds if there are enough free IDs.

Axes: N items, L levels, K codes of a level, G groups (different prefixes), R rows of a chunk.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from recsys.semantic_ids.codes import SemanticIds, id_keys
from recsys.semantic_ids.rq_kmeans import ResidualKMeans

CHUNK_CELLS = 2**26
"""Distances held at once."""


class NoFreeIdError(ValueError):
    """More items than IDs; a new fit with larger levels would have enough."""


class UniqueCodes(NamedTuple):
    """Codes [N, L] int32 without repeats, and the sizes of their levels."""

    codes: Tensor
    level_sizes: tuple[int, ...]

    def at(self, item_rows: Tensor, num_item_rows: int, quantizer: ResidualKMeans) -> SemanticIds:
        """Return them to item rows, [N]."""
        return SemanticIds.of_items(
            self.codes,
            level_sizes=self.level_sizes,
            quantizer_digest=quantizer.digest,
            item_rows=item_rows,
            num_item_rows=num_item_rows,
        )


def rows_with_content(vectors: Tensor) -> Tensor:
    """Return which vectors [N, D] are finite and not zero, [N] bool: those that can have an ID."""
    length = vectors.abs().sum(1)
    return torch.isfinite(length) & (length > 0)


def item_rows_with_content(vectors: Tensor) -> Tensor:
    """Do so by item row, where row 0 is the padding."""
    has_content = rows_with_content(vectors)
    has_content[0] = False
    return has_content


def resolve_collisions(
    quantizer: ResidualKMeans, vectors: Tensor, codes: Tensor, *, taken: Tensor | None = None
) -> UniqueCodes:
    """Return each item codes of its own.

    Args:
        vectors: What was encoded, [N, D].
        codes: Their codes, [N, L], collisions included.
        taken: Published codes, which stay, [M, L].
    """
    sizes = quantizer.level_sizes
    held = codes.new_empty(0, len(sizes)) if taken is None else taken.to(codes)
    if len(codes) + len(held) > prod(sizes):
        raise NoFreeIdError(
            f"{len(codes)} items and {len(held)} published IDs do not fit the {prod(sizes)} IDs "
            f"of levels {sizes}; use more or larger levels"
        )
    resolved = codes.clone()
    for level in range(len(sizes)):
        _resolve_level(quantizer, vectors, resolved, held, level)
    return UniqueCodes(resolved, sizes)


def assign_semantic_ids(quantizer: ResidualKMeans, vectors: Tensor) -> SemanticIds:
    """Encode a catalogue and make its IDs unique.

    Args:
        vectors: One per item row, [num_item_rows, D]; row 0 is the padding. Rows whose vector
            is zero or not finite have no content: they get no ID.
    """
    rows = item_rows_with_content(vectors).nonzero().flatten()
    # A copy of all vectors but a few would double the memory of a large catalogue.
    dense = vectors[1:] if len(rows) == len(vectors) - 1 else vectors[rows]
    codes = quantizer.encode(dense)
    return resolve_collisions(quantizer, dense, codes).at(rows, len(vectors), quantizer)


def _rank_within(keys: Tensor, order: Tensor) -> Tensor:
    """Number the items of each key 0, 1, ... in ``order``, which puts equal keys together."""
    in_order = keys[order]
    is_first = torch.ones_like(in_order, dtype=torch.bool)
    is_first[1:] = in_order[1:] != in_order[:-1]
    position = torch.arange(len(keys), device=keys.device)
    start = torch.where(is_first, position, 0).cummax(0).values
    rank = torch.empty_like(position)
    rank[order] = position - start
    return rank


def _order_by(keys: Tensor, distance: Tensor) -> Tensor:
    """Sort by key, then distance, then row."""
    by_distance = distance.argsort(stable=True)
    return by_distance[keys[by_distance].argsort(stable=True)]


def _resolve_level(
    quantizer: ResidualKMeans, vectors: Tensor, codes: Tensor, held: Tensor, level: int
) -> None:
    """Move items out of codes with more items than IDs; changes ``codes``."""
    sizes = quantizer.level_sizes
    room = prod(sizes[level + 1 :])
    keys = id_keys(codes[:, : level + 1], sizes)
    held_keys = id_keys(held[:, : level + 1], sizes)
    distinct, of_item, load = torch.unique(keys, return_inverse=True, return_counts=True)
    in_order = held_keys.sort().values
    first = torch.searchsorted(in_order, distinct)
    left = room - (torch.searchsorted(in_order, distinct, right=True) - first)
    if bool((load <= left).all()):
        return
    crowded = (load > left)[of_item].nonzero().flatten()
    distance = _own_distances(quantizer, vectors, codes, crowded, level)
    rank = _rank_within(keys[crowded], _order_by(keys[crowded], distance))
    losing = rank >= left[of_item[crowded]]
    losers = crowded[losing]
    stays = torch.ones(len(codes), dtype=torch.bool, device=codes.device)
    stays[losers] = False
    occupied = torch.cat([keys[stays], held_keys]).sort().values
    by_prefix = (keys[losers] // sizes[level]).argsort(stable=True)
    losers = losers[by_prefix]
    before = codes[losers, level].clone()
    _seat_all(quantizer, vectors, codes, losers, occupied, level)
    moved = losers[codes[losers, level] != before]
    if level + 1 < len(sizes):
        _encode_rest(quantizer, vectors, codes, moved, level + 1)


def _own_distances(
    quantizer: ResidualKMeans, vectors: Tensor, codes: Tensor, items: Tensor, level: int
) -> Tensor:
    """Compute the distance of each item to its code at this level, [M]."""
    chunks = [torch.empty(0, device=codes.device)]
    for some in torch.split(items, max(1, CHUNK_CELLS // quantizer.level_sizes[level])):
        distances = quantizer.level_distances(vectors[some], codes[some, :level]).to(codes.device)
        chunks.append(distances.gather(1, codes[some, level, None].long())[:, 0])
    return torch.cat(chunks)


def _encode_rest(
    quantizer: ResidualKMeans, vectors: Tensor, codes: Tensor, items: Tensor, level: int
) -> None:
    """Encode the levels from ``level`` on again, after a changed prefix."""
    for index in range(level, len(quantizer.level_sizes)):
        for some in torch.split(items, max(1, CHUNK_CELLS // quantizer.level_sizes[index])):
            distances = quantizer.level_distances(vectors[some], codes[some, :index])
            codes[some, index] = distances.argmin(1).to(codes)


def _seat_all(
    quantizer: ResidualKMeans,
    vectors: Tensor,
    codes: Tensor,
    losers: Tensor,
    occupied: Tensor,
    level: int,
) -> None:
    """Return each loser the nearest code with free IDs; losers are in prefix order."""
    size = quantizer.level_sizes[level]
    room = prod(quantizer.level_sizes[level + 1 :])
    last_prefix, last_free = -1, None
    for items in torch.split(losers, max(1, CHUNK_CELLS // size)):
        prefixes = id_keys(codes[items, :level], quantizer.level_sizes)
        groups, group = torch.unique(prefixes, return_inverse=True)
        low = torch.searchsorted(occupied, groups[:1] * size)
        high = torch.searchsorted(occupied, groups[-1:] * size + size)
        near = occupied[int(low) : int(high)]
        at = torch.searchsorted(groups, near // size).clamp(max=len(groups) - 1)
        cells = (at * size + near % size)[groups[at] == near // size]
        free = (room - torch.bincount(cells, minlength=len(groups) * size)).view(-1, size)
        if last_free is not None and int(groups[0]) == last_prefix:
            free[0] = last_free
        distances = quantizer.level_distances(vectors[items], codes[items, :level])
        codes[items, level] = _seat(distances.to(codes.device), group, free).to(codes)
        last_prefix, last_free = int(groups[-1]), free[-1].clone()


def _seat(distances: Tensor, group: Tensor, free: Tensor) -> Tensor:
    """Assign rows in rounds: each bids for its nearest free code, the nearest bidders get it."""
    size = free.shape[1]
    seat = torch.full_like(group, -1)
    waiting = torch.arange(len(group), device=group.device)
    distances.masked_fill_((free <= 0)[group], torch.inf)
    while len(waiting):
        distance, choice = distances.min(1)
        cell = group[waiting] * size + choice
        rank = _rank_within(cell, _order_by(cell, distance))
        granted = rank < free.view(-1)[cell]
        seat[waiting[granted]] = choice[granted]
        free.view(-1).index_add_(0, cell[granted], -torch.ones_like(cell[granted]))
        distances, waiting = distances[~granted], waiting[~granted]
        distances.masked_fill_((free <= 0)[group[waiting]], torch.inf)
    return seat
