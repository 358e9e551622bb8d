"""Rubrics: what a good list has, each a number from data alone, 0 to 1, more is better.

No rubric reads a model's scores, a held-out event or the order of a list, so none has a position
bias; what each has of a length bias is measured (judges.py).

Axes: L lists, k list length, U users, N item rows, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import normalize

from recsys.data.batch import Jagged
from recsys.evaluation.beyond_accuracy import category_diversity, item_popularity

MAX_HISTORY = 50
"""Latest events of a history that a list is held against."""
NUM_NEAREST = 3
BLOCK_ITEMS = 512


@dataclass(frozen=True, kw_only=True, eq=False)
class Known:
    """What lists are held against: training events and the catalogue."""

    histories: Jagged
    """Training events of every user row, oldest first, [U]."""
    categories: Jagged
    """Category rows of every item row, [N]."""
    num_categories: int
    content: Tensor
    """[N, D]; D may be 0."""
    first_seen: Tensor | None = None
    """When each item had its first training event, as a share of the time of training, [N]; NaN
    for items without one. None where events have no times."""

    @cached_property
    def popularity(self) -> Tensor:
        """Users who have each item, [N]."""
        return item_popularity(self.histories, self.num_item_rows)

    @property
    def num_item_rows(self) -> int:
        return self.categories.batch_size

    @cached_property
    def taken(self) -> Tensor:
        """Who has what: sparse ones, [U, N]."""
        pairs = torch.stack([self.histories.segments(), self.histories.values])
        pairs = torch.unique(pairs, dim=1)
        size = (self.histories.batch_size, self.num_item_rows)
        ones = torch.ones(pairs.shape[1])
        return torch.sparse_coo_tensor(pairs, ones, size, is_coalesced=True, check_invariants=True)

    def history(self, user: int) -> Tensor:
        """The latest events of a user row."""
        first, last = self.histories.offsets[user : user + 2].tolist()
        return self.histories.values[max(first, last - MAX_HISTORY) : last]

    def popular(self, user: int, k: int) -> Tensor:
        """The k most popular items that a user does not have."""
        own = self.histories.values[
            int(self.histories.offsets[user]) : int(self.histories.offsets[user + 1])
        ]
        counts = self.popularity.double().clone()
        counts[own] = -1
        counts[0] = -1
        return counts.topk(min(k, len(counts) - 1)).indices


class Rubric(Protocol):
    """Scores lists [L, k] of user rows [L], 0 to 1."""

    def __call__(self, lists: Tensor, users: Tensor, known: Known) -> Tensor:
        """Give a score to each list, [L]."""


def relevance(lists: Tensor, users: Tensor, known: Known) -> Tensor:
    """How often users who have the list's items also have those of the history, [L].

    Of each item the mean of its `NUM_NEAREST` largest cosines with items of the history, by the
    users who have both (training events alone); of a list the mean over its items.

    Args:
        lists: Item rows, 0 for a hole, [L, k].
        users: User row of each list, [L].
    """
    popularity = known.popularity.double().clamp_min(1)
    items = torch.unique(lists[lists > 0])
    found = torch.zeros(lists.shape, dtype=torch.float64)
    transposed = known.taken.t().coalesce()
    for block in items.split(BLOCK_ITEMS):
        own = known.taken.index_select(1, block).to_dense()  # [U, b]
        shared = (transposed @ own).double()  # [N, b]
        cosines = shared / (popularity[:, None] * popularity[block]).sqrt()
        column = torch.full((known.num_item_rows,), -1)
        column[block] = torch.arange(len(block))
        for row, user in enumerate(users.tolist()):
            at = column[lists[row]]
            there = at >= 0
            if not there.any() or not len(history := known.history(user)):
                continue
            near = cosines[history][:, at[there]]  # [H, c]
            best = near.topk(min(NUM_NEAREST, len(near)), dim=0).values.mean(0)
            found[row, there] = best
    return found.sum(1) / (lists > 0).sum(1).clamp_min(1)


def distinct(lists: Tensor, users: Tensor, known: Known) -> Tensor:
    """How unlike each item is the most similar other one, by content; repeats are 0, [L]."""
    unit = normalize(known.content.double(), dim=1)[lists]  # [L, k, D]
    alike = (unit @ unit.transpose(1, 2)).clamp(0, 1)
    alike = torch.where(lists[:, :, None] == lists[:, None, :], 1.0, alike)
    there = (lists > 0)[:, :, None] & (lists > 0)[:, None, :]
    others = ~torch.eye(lists.shape[1], dtype=torch.bool)
    closest = alike.masked_fill(~(there & others), 0).amax(2)  # [L, k]
    return 1 - closest.sum(1) / (lists > 0).sum(1).clamp_min(1)


def diversity(lists: Tensor, users: Tensor, known: Known) -> Tensor:
    """Mean distance of two items by their categories, [L]; 0 for lists of one item."""
    spread = category_diversity(lists, lists.shape[1], known.categories, known.num_categories)
    return spread.nan_to_num(0)


def personal(lists: Tensor, users: Tensor, known: Known) -> Tensor:
    """Share of a list that is not among the as many most popular items new to the user, [L]."""
    number = (lists > 0).sum(1)
    found = torch.zeros(len(lists), dtype=torch.float64)
    for row, user in enumerate(users.tolist()):
        length = int(number[row])
        if length:
            popular = torch.isin(lists[row], known.popular(user, length)) & (lists[row] > 0)
            found[row] = 1 - float(popular.sum()) / length
    return found


def freshness(lists: Tensor, users: Tensor, known: Known) -> Tensor:
    """Mean time of the items' first events, as a share of the time of training, [L]."""
    assert known.first_seen is not None
    first = known.first_seen.double().nan_to_num(1)[lists]
    there = lists > 0
    return (first * there).sum(1) / there.sum(1).clamp_min(1)


RUBRICS: Mapping[str, Rubric] = {
    "relevance": relevance,
    "distinct": distinct,
    "diversity": diversity,
    "personal": personal,
    "freshness": freshness,
}


def rubrics_of(known: Known) -> dict[str, Rubric]:
    """Give the rubrics that there are data for."""
    missing = {
        "distinct": known.content.shape[1] == 0,
        "diversity": known.num_categories < 2,
        "freshness": known.first_seen is None,
    }
    return {name: rubric for name, rubric in RUBRICS.items() if not missing.get(name)}
