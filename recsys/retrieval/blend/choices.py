"""Training examples of a blend: queries with a target in some list, and the other candidates.

Axes: B queries, Q queries kept, S sources, F features of a source, P = S * F, L items of all lists
of a query together, C candidates kept, k list length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from recsys.data.batch import Jagged
from recsys.data.top_k import TopK
from recsys.retrieval.blend.choice_model import Choices
from recsys.retrieval.blend.source_features import merge_lists

BLOCK_QUERIES = 256
MAX_CELLS = 1 << 24
"""Pairs of a query and an item that are marked at a time."""
UNKNOWN_KIND = -1


class DrawnChoices(NamedTuple):
    """Choices to fit on, and whose they are."""

    choices: Choices
    """Choices of Q queries."""
    queries: Tensor
    """[Q] int64, number of each query in the lists."""
    item_rows: Tensor
    """[Q, C] int64, -1 where there is no candidate."""
    num_found: int
    """Queries with a target in any list, those left out included."""


def draw_choices(
    lists: Mapping[str, TopK],
    targets: Jagged,
    scales: Tensor,
    *,
    max_queries: int,
    max_candidates: int,
) -> DrawnChoices:
    """Keep a bounded number of queries and candidates, the same each time.

    Of more than C candidates the first half by reciprocal rank stays, and of the rest an even
    sample that counts for all of it: targets far down then compete with as many as they did.
    """
    found = queries_found(lists, targets)
    if (num_found := len(found)) == 0:
        raise ValueError(
            f"none of the {targets.batch_size} queries has a target in the lists of "
            f"{sorted(lists)}, so there is nothing to learn; request longer lists, and check that "
            "lists and targets are of the same queries"
        )
    queries = evenly(found, max_queries)
    parts = []
    for block in torch.split(queries, BLOCK_QUERIES):
        merged = merge_lists({name: TopK(*(p[block] for p in top)) for name, top in lists.items()})
        is_target = _is_target(merged.item_rows, targets.take(block))
        places, offsets = _kept(merged.item_rows > 0, is_target, max_candidates)
        features = merged.features(scales).flatten(2)  # [q, L, P]
        features = features.gather(1, places[:, :, None].expand(-1, -1, features.shape[2]))
        chosen = is_target.gather(1, places).float()
        chosen /= chosen.sum(1, keepdim=True)
        parts.append((features, offsets, chosen, merged.item_rows.gather(1, places)))
    features, offsets, chosen, rows = (torch.cat(part) for part in zip(*parts, strict=True))
    return DrawnChoices(Choices(features, offsets, chosen), queries, rows, num_found)


def queries_found(lists: Mapping[str, TopK], targets: Jagged) -> Tensor:
    """Number the queries with a target in any list, ascending."""
    found = torch.zeros(targets.batch_size, dtype=torch.bool)
    for top in lists.values():
        found |= _is_target(top.item_rows, targets).any(1)
    return found.nonzero().squeeze(1)


def kinds_of(values: Tensor | None, bounds: Sequence[float], num_values: int) -> Tensor:
    """Return which kind each value is of, [num_values] int64.

    Values below the first bound are of kind 0, from it to below the second of kind 1, and so on;
    NaN and missing values are of `UNKNOWN_KIND`. Without bounds there is kind 0 alone.
    """
    if not bounds:
        return torch.zeros(num_values, dtype=torch.int64)
    if values is None:
        return torch.full((num_values,), UNKNOWN_KIND)
    numbers = values.double()
    cuts = torch.tensor(bounds, dtype=torch.float64)
    kinds = torch.bucketize(numbers, cuts, right=True)
    return kinds.masked_fill(numbers.isnan(), UNKNOWN_KIND)


def kinds_of_rows(kinds: Tensor, item_rows: Tensor) -> Tensor:
    """Look up the kind [N] of item rows of any shape; `UNKNOWN_KIND` outside [1, N)."""
    known = (item_rows > 0) & (item_rows < len(kinds))
    if len(kinds) == 0:
        return torch.full_like(item_rows, UNKNOWN_KIND)
    return kinds[item_rows.where(known, 0)].masked_fill(~known, UNKNOWN_KIND)


def evenly(values: Tensor, at_most: int) -> Tensor:
    """Keep at most this many values, evenly spaced, in order."""
    if len(values) <= at_most:
        return values
    return values[torch.arange(at_most) * len(values) // at_most]


def _is_target(item_rows: Tensor, targets: Jagged) -> Tensor:
    """Mark the places [B, k] that hold one of the query's targets."""
    if len(item_rows) != targets.batch_size:
        raise ValueError(
            f"lists are of {len(item_rows)} queries, targets of {targets.batch_size}; both must "
            "cover the same queries in the same order"
        )
    parts = [item_rows.clamp_min(0), targets.values]
    width = 1 + max((int(part.max()) for part in parts if part.numel()), default=0)
    found = torch.zeros(item_rows.shape, dtype=torch.bool)
    # A table of all items: work by the sizes of both, however many targets one query has.
    for block in torch.split(torch.arange(len(item_rows)), max(1, MAX_CELLS // width)):
        own = targets.take(block)
        wanted = torch.zeros(len(block), width, dtype=torch.bool)
        wanted[own.segments(), own.values.clamp_min(0)] = True
        found[block] = wanted.gather(1, item_rows[block].clamp_min(0))
    return found & (item_rows > 0)


def _kept(is_item: Tensor, is_target: Tensor, max_candidates: int) -> tuple[Tensor, Tensor]:
    """Choose places of [B, L] candidates, those first in the list coming first."""
    length = is_item.shape[1]
    if length <= max_candidates:
        places = torch.arange(length).expand(len(is_item), -1)
        return places, torch.zeros(is_item.shape).masked_fill(~is_item, -torch.inf)
    num_head = max_candidates // 2
    others = is_item & ~is_target
    place = others.long().cumsum(1) - 1  # [B, L] place among those that are no target
    num_sampled = (max_candidates - is_target.sum(1, keepdim=True) - num_head).clamp_min(1)
    num_tail = (others.sum(1, keepdim=True) - num_head).clamp_min(1)
    in_tail = others & (place >= num_head)
    # Exactly num_sampled of num_tail places pass, evenly spaced; all where they are fewer.
    passes = ((place - num_head) * num_sampled) % num_tail < num_sampled
    head = others & (place < num_head)
    kept = is_target | head | (in_tail & passes)
    order = (~kept).byte().sort(dim=1, stable=True).indices[:, :max_candidates]
    stands_for = (num_tail / num_sampled).clamp_min(1).log()
    offsets = torch.where(in_tail, stands_for, 0.0).masked_fill(~kept, -torch.inf)
    return order, offsets.gather(1, order)
