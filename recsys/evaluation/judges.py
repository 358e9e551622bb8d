"""Judges of lists, judged: planted lists, agreement with clicks and with each other, biases.

A judge scores every list, higher is better: a rubric (rubrics.py) or a language model.

Axes: L lists, k list length, U users, N item rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from recsys.data.batch import Jagged
from recsys.evaluation.beyond_accuracy import category_diversity, item_popularity
from recsys.evaluation.bootstrap import Interval, bootstrap_intervals
from recsys.evaluation.calibration import area_under_curve
from recsys.evaluation.config import RUBRIC_NAMES, BootstrapConfig

MAX_HISTORY = 50
"""Latest events of a history that a list is held against."""
NUM_NEAREST = 3
BLOCK_ITEMS = 512


@dataclass(frozen=True, kw_only=True, eq=False)
class Known:
    """Training events and the catalogue, by which lists are judged."""

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
        """Items of each user as sparse ones, [U, N]."""
        pairs = torch.stack([self.histories.segments(), self.histories.values])
        pairs = torch.unique(pairs, dim=1)
        size = (self.histories.batch_size, self.num_item_rows)
        ones = torch.ones(pairs.shape[1])
        return torch.sparse_coo_tensor(pairs, ones, size, is_coalesced=True, check_invariants=True)

    def items(self, user: int) -> Tensor:
        """Return all of a user's events."""
        first, last = self.histories.offsets[user : user + 2].tolist()
        return self.histories.values[first:last]

    def popular(self, user: int, k: int) -> Tensor:
        """The k most popular items that a user does not have."""
        counts = self.popularity.double().clone()
        counts[self.items(user)] = -1
        counts[0] = -1
        return counts.topk(min(k, len(counts) - 1)).indices


class Rubric(Protocol):
    """Scores lists [L, k] of user rows [L], 0 to 1."""

    def __call__(self, lists: Tensor, users: Tensor, known: Known) -> Tensor:
        """Score each list, [L]."""


def relevance(lists: Tensor, users: Tensor, known: Known) -> Tensor:
    """Mean similarity of a list's items, 0 for a hole, to the user's nearest ones, [L]."""
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
            if not there.any() or not len(history := known.items(user)[-MAX_HISTORY:]):
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


RUBRICS: Mapping[str, Rubric] = dict(
    zip(RUBRIC_NAMES, (relevance, distinct, diversity, personal, freshness), strict=True)
)


def available_rubrics(known: Known) -> dict[str, Rubric]:
    """Return the rubrics that there are data for."""
    missing = {
        "distinct": known.content.shape[1] == 0,
        "diversity": known.num_categories < 2,
        "freshness": known.first_seen is None,
    }
    return {name: rubric for name, rubric in RUBRICS.items() if not missing.get(name)}


Floats = NDArray[np.float64]
Judge = Callable[[Tensor, Tensor], Tensor]
"""Scores lists [L, k] of user rows [L]; NaN for a list that it gave no score."""
OFF_TASTE_QUARTER = 0.25
"""Off-taste items are of this share of the catalogue, the furthest from the user's categories."""


def planted_lists(
    good: Tensor, users: Tensor, known: Known, generator: torch.Generator
) -> dict[str, Tensor]:
    """Make bad lists that every rubric should tell from good ones, [L, k] of users [L].

    ``popular`` has the most popular items that the user does not have; ``duplicates`` each item of
    the first half followed by the one of most similar content; ``off_taste`` random items of the
    categories that the user has least.
    """
    found = {"popular": _rows(known.popular(user, good.shape[1]) for user in users.tolist())}
    if known.content.shape[1]:
        unit = normalize(known.content.double(), dim=1)
        found["duplicates"] = _rows(_with_twins(row, unit) for row in good)
    if known.num_categories > 1:
        sets = _category_sets(known)
        found["off_taste"] = _rows(
            _off_taste(user, good.shape[1], sets, known, generator) for user in users.tolist()
        )
    return found


def _rows(rows: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(rows))


def _with_twins(items: Tensor, unit: Tensor) -> Tensor:
    """Follow each of the first half by the most similar item that is not there yet, [k]."""
    found: list[int] = []
    for item in items.tolist():
        if item in found:
            continue
        alike = unit @ unit[item]
        alike[[0, item, *found]] = -2
        found += [item, int(alike.argmax())]
        if len(found) >= len(items):
            break
    return torch.tensor(found[: len(items)])


def _category_sets(known: Known) -> Tensor:
    """Return the unit vector of each item's categories, [N, C]."""
    sets = torch.zeros(known.num_item_rows, known.num_categories, dtype=torch.float64)
    sets[known.categories.segments(), known.categories.values] = 1
    return normalize(sets, dim=1)


def _off_taste(user: int, k: int, sets: Tensor, known: Known, generator: torch.Generator) -> Tensor:
    """Draw items furthest from a user's categories that the user does not have, [k]."""
    own = known.items(user)
    taste = sets @ sets[own].sum(0)
    taste[own] = torch.inf
    taste[known.popularity == 0] = torch.inf
    taste[0] = torch.inf
    number = max(k, int(OFF_TASTE_QUARTER * (len(taste) - 1)))
    # Equals are drawn at random, not by their row.
    noise = torch.rand(len(taste), generator=generator, dtype=torch.float64) * 1e-9
    furthest = (taste + noise).topk(min(number, len(taste) - 1), largest=False).indices
    return furthest[torch.randperm(len(furthest), generator=generator)[:k]]


def separation(good: Tensor, bad: Tensor) -> float:
    """Probability that a judge scores a good list above a bad one, [L] each; NaN without scores."""
    good, bad = good[~good.isnan()], bad[~bad.isnan()]
    labels = torch.cat([torch.ones(len(good)), torch.zeros(len(bad))])
    return area_under_curve(torch.cat([good, bad]), labels)


def click_agreement(
    scores: Mapping[str, Tensor], hits: Mapping[str, Tensor], config: BootstrapConfig
) -> Interval | None:
    """Share of pairs in which a judge prefers the list with the held-out event; 0.5 is chance."""
    names = list(scores)
    total = torch.zeros(len(next(iter(scores.values()))), dtype=torch.float64)
    pairs = torch.zeros_like(total)
    for one in names:
        for other in names:
            mine, theirs = scores[one].double(), scores[other].double()
            known = hits[one] & ~hits[other] & ~mine.isnan() & ~theirs.isnan()
            total += torch.where(known, (mine > theirs) + 0.5 * (mine == theirs), 0.0)
            pairs += known
    there = pairs > 0
    if int(there.sum()) < 2:
        return None
    share = total[there] / pairs[there]
    return bootstrap_intervals({"agreement": share}, config)["agreement"]


def rank_correlation(one: Tensor, other: Tensor) -> float:
    """Spearman's correlation of two judges over the same lists; NaN where one says nothing."""
    both = ~(one.isnan() | other.isnan())
    if int(both.sum()) < 3:
        return float("nan")
    mine, theirs = (_ranks(part[both].double().numpy()) for part in (one, other))
    if mine.std() == 0 or theirs.std() == 0:
        return float("nan")
    return float(np.corrcoef(mine, theirs)[0, 1])


def _ranks(values: Floats) -> Floats:
    """Return ranks; equals share their mean."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    ranks: Floats = (last - (counts - 1) / 2)[place]
    return ranks


class Biases(NamedTuple):
    """Biases of a judge, in standard deviations of its scores."""

    position: float
    """Mean size of the change where a list is reversed."""
    length: float
    """Mean change where a list is cut to its first half; below 0 it prefers long lists."""


def measure_biases(judge: Judge, lists: Tensor, users: Tensor, scores: Tensor) -> Biases:
    """Measure how a judge follows order and length, from its scores of the unchanged lists, [L]."""
    scores = scores.double()
    turned = judge(lists.flip(1), users).double()
    half = judge(lists[:, : max(1, lists.shape[1] // 2)], users).double()
    known = scores[~scores.isnan()]
    spread = float(known.std(correction=0)) or 1.0
    position = float((turned - scores).abs().nanmean()) / spread
    return Biases(position, float((half - scores).nanmean()) / spread)
