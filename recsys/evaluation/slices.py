"""Metrics for parts of the users or targets: a mean hides who is served badly.

A slice is a set of targets: a slice of users is all their targets, a slice of items is the
targets that are such items. Ranks stay those of the full catalogue. A metric of a slice is the
mean over the users with a target in it of the metric on those targets alone, so recall of the
tail is the share of a user's tail targets that was found.

Slices of one group may overlap (categories) and need not cover everything.

Axes: U users, M targets, N item rows (row 0 is padding), C category rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from recsys.data.batch import Jagged, cut_offsets
from recsys.evaluation.intervals import Interval, mean_intervals
from recsys.evaluation.ranking import per_user_metric

HEAD_SHARE = 0.5
"""The most popular items that together hold this share of training events are the head."""
TORSO_SHARE = 0.4
"""The next most popular ones that hold this share; the rest, bar cold ones, is the tail."""
NEW_MAX_EVENTS = 4
"""Users with at most this many training events are new; those with none are among them."""
HEAVY_SHARE = 0.2
"""Share of the users who are not new that are heavy, the most active ones."""


class Slice(NamedTuple):
    """A named set of targets."""

    group: str
    """Criterion of the slice, such as "item_popularity"."""
    name: str
    targets: Tensor
    """[M] bool, one for each target of the ranking."""


@dataclass(frozen=True, kw_only=True)
class SliceMetrics:
    """Metrics of one slice and how many users and targets it has."""

    group: str
    name: str
    num_users: int
    num_targets: int
    metrics: dict[str, Interval]
    """Empty for an empty slice: there is no value, and a NaN would not be JSON."""

    def as_json(self) -> dict[str, Any]:
        metrics = {name: value._asdict() for name, value in self.metrics.items()}
        return asdict(self) | {"metrics": metrics}


def item_popularity_slices(targets: Jagged, popularity: Tensor) -> list[Slice]:
    """Cut targets into head, torso, tail and cold (never seen in training) items.

    Equally popular items are in one slice, so a slice may hold more than its share. Targets
    outside the catalogue are cold.

    Args:
        popularity: Training events or users of each item row, [N] int64.
    """
    known = (targets.values > 0) & (targets.values < len(popularity))
    count = torch.where(known, popularity[targets.values.clamp(0, len(popularity) - 1)], 0)  # [M]
    ordered = popularity[1:].sort(descending=True).values.double()
    before = (ordered.cumsum(0) - ordered) / ordered.sum().clamp_min(1)  # share above each item
    # An item belongs where its share begins; ties join the highest slice that one of them is in.
    slack = 1e-9
    head_min = _least(ordered[before < HEAD_SHARE - slack])
    torso_min = _least(ordered[before < HEAD_SHARE + TORSO_SHARE - slack])
    head = (count > 0) & (count >= head_min)
    torso = (count > 0) & (count >= torso_min) & ~head
    return _slices(
        "item_popularity",
        {"head": head, "torso": torso, "tail": (count > 0) & ~head & ~torso, "cold": count == 0},
    )


def user_activity_slices(targets: Jagged, num_events: Tensor) -> list[Slice]:
    """Cut users into new, medium and heavy ones.

    Users with equally many events are in one slice; at the cut they are heavy.

    Args:
        num_events: Training events of each user of the ranking, [U] int64.
    """
    new = num_events <= NEW_MAX_EVENTS
    others = num_events[~new].sort(descending=True).values
    num_heavy = max(1, round(len(others) * HEAVY_SHARE))
    heavy_min = int(others[num_heavy - 1]) if len(others) else 0
    heavy = ~new & (num_events >= heavy_min)
    return user_slices(
        targets, "user_activity", {"new": new, "medium": ~new & ~heavy, "heavy": heavy}
    )


def category_slices(
    targets: Jagged, group: str, categories: Jagged, names: Sequence[str]
) -> list[Slice]:
    """Cut targets by category or domain of the item; an item may be in several or none.

    Args:
        names: Name of each category row, [C]; row 0 (unknown) gets no slice.
    """
    num_items = categories.batch_size
    member = torch.zeros(num_items, dtype=torch.bool)
    owners = categories.segments()
    inside = targets.values.clamp(0, num_items - 1)
    known = (targets.values > 0) & (targets.values < num_items)
    members = {}
    for row, name in enumerate(names[1:], start=1):
        member.zero_()
        member[owners[categories.values == row]] = True
        members[name] = member[inside] & known
    return _slices(group, members)


def user_slices(targets: Jagged, group: str, members: dict[str, Tensor]) -> list[Slice]:
    """Make slices of users into slices of their targets.

    Args:
        members: Slice name to [U] bool.
    """
    owners = targets.segments()
    return _slices(group, {name: users[owners] for name, users in members.items()})


def slice_metrics(
    ranks: Jagged, slices: Sequence[Slice], metrics: Sequence[str]
) -> list[SliceMetrics]:
    """Metrics of each slice with their confidence intervals, in the order given."""
    owners = ranks.segments()
    found = []
    for part in slices:
        num_targets = int(part.targets.sum())
        lengths = torch.bincount(owners[part.targets], minlength=ranks.batch_size)
        users = (lengths > 0).nonzero().squeeze(1)
        values: dict[str, Interval] = {}
        if num_targets:
            kept = Jagged(ranks.values[part.targets], cut_offsets(lengths[users]))
            values = mean_intervals({name: per_user_metric(kept, name) for name in metrics})
        found.append(
            SliceMetrics(
                group=part.group,
                name=part.name,
                num_users=len(users),
                num_targets=num_targets,
                metrics=values,
            )
        )
    return found


def _slices(group: str, members: dict[str, Tensor]) -> list[Slice]:
    return [Slice(group, name, targets) for name, targets in members.items()]


def _least(counts: Tensor) -> float:
    return float(counts.min()) if len(counts) else float("inf")
