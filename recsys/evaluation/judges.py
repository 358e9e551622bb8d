"""Judges of lists, judged: planted lists, agreement with clicks and with each other, biases.

A judge gives every list a number, more is better. It may be a rubric (rubrics.py) or a language
model; what can be said for it is measured in the same way.

Axes: L lists, k list length, U users, N item rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from recsys.evaluation.auc import area_under_curve
from recsys.evaluation.bootstrap import BootstrapConfig, Interval, bootstrap_intervals
from recsys.evaluation.rubrics import Known

Floats = NDArray[np.float64]
Judge = Callable[[Tensor, Tensor], Tensor]
"""Scores lists [L, k] of user rows [L]; NaN for a list that it gave no score."""
OFF_TASTE_QUARTER = 0.25
"""Off-taste items are of this share of the catalogue, the furthest from the user's categories."""


def planted_lists(
    good: Tensor, users: Tensor, known: Known, generator: torch.Generator
) -> dict[str, Tensor]:
    """Make bad lists for the users of good ones: what every rubric should tell from them.

    ``popular`` has the most popular items that the user does not have; ``duplicates`` each item of
    the first half of the good list followed by the one of most similar content; ``off_taste``
    random items of categories that the user has least.

    Args:
        good: [L, k] without holes.
        users: [L] user rows.
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
    """Give each item the unit vector of its categories, [N, C]."""
    sets = torch.zeros(known.num_item_rows, known.num_categories, dtype=torch.float64)
    sets[known.categories.segments(), known.categories.values] = 1
    return normalize(sets, dim=1)


def _off_taste(user: int, k: int, sets: Tensor, known: Known, generator: torch.Generator) -> Tensor:
    """Draw items furthest from a user's categories that the user does not have, [k]."""
    own = known.histories.values[
        int(known.histories.offsets[user]) : int(known.histories.offsets[user + 1])
    ]
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
    """Chance that a judge scores a good list above a bad one, [L] each.

    Lists without a score do not count; NaN where none is left.
    """
    good, bad = good[~good.isnan()], bad[~bad.isnan()]
    labels = torch.cat([torch.ones(len(good)), torch.zeros(len(bad))])
    return area_under_curve(torch.cat([good, bad]), labels)


def click_agreement(
    scores: Mapping[str, Tensor], hits: Mapping[str, Tensor], config: BootstrapConfig
) -> Interval | None:
    """How often a judge prefers, of two lists of one user, the one with the held-out event.

    Args:
        scores: Of each way to make lists, [U].
        hits: Whether its list holds the user's held-out event, [U] bool.

    Returns:
        Share over users of such pairs, 0.5 is chance; None where there are none.
    """
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
    """Give ranks; equals share their mean."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    ranks: Floats = (last - (counts - 1) / 2)[place]
    return ranks


class Biases(NamedTuple):
    """What moves a judge and should not, in standard deviations of its scores."""

    position: float
    """Mean size of the change where a list is reversed."""
    length: float
    """Mean change where a list is cut to its first half; below 0 it prefers long lists."""


def biases_of(judge: Judge, lists: Tensor, users: Tensor, scores: Tensor) -> Biases:
    """Measure how a judge follows order and length.

    Args:
        scores: What it gave the lists as they are, [L].
    """
    scores = scores.double()
    turned = judge(lists.flip(1), users).double()
    half = judge(lists[:, : max(1, lists.shape[1] // 2)], users).double()
    known = scores[~scores.isnan()]
    spread = float(known.std(correction=0)) or 1.0
    position = float((turned - scores).abs().nanmean()) / spread
    return Biases(position, float((half - scores).nanmean()) / spread)
