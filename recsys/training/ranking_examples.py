"""Queries with their candidates and what came of them: what a ranker learns from.

A task is a kind of feedback: ``next``, the event that followed; ``like``, an event of a high value,
where events have values; and each type of event, where there are several (``purchase``).

Axes: U queries, k candidates of each, T tasks, F numbers of a candidate, M held-out events, B
queries of a step, C candidates of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.top_k import TopK
from recsys.models.ranker.batch import RankingBatch

NEXT, LIKE = "next", "like"
UNOBSERVED = float("nan")
LEAST_OF_A_TYPE = 20
"""Events of a type, and of the others, below which it is no task."""


class Outcomes(NamedTuple):
    """What held-out events were, and led to."""

    values: Tensor
    """[M], NaN where an event has none."""
    types: Tensor
    """[M, K] bool, which types it was or led to; none where it is not known."""
    type_names: tuple[str, ...] = ()

    @classmethod
    def of_values(cls, values: Tensor) -> Outcomes:
        """Take events without types."""
        return cls(values, torch.zeros(len(values), 0, dtype=torch.bool))

    def of_type(self, name: str) -> Tensor:
        """Mark the events of a type, [M] float, 0 or 1."""
        return self.types[:, self.type_names.index(name)].float()


def tasks_of(outcomes: Outcomes, like_from: float) -> tuple[tuple[str, ...], str]:
    """Choose the tasks that held-out events can teach, and say why.

    A type of event is a task where it has at least ``LEAST_OF_A_TYPE`` events and others have too.

    Args:
        outcomes: Of M events.
        like_from: Least value of a like.
    """
    known = outcomes.values[~outcomes.values.isnan()]
    liked = int((known >= like_from).sum())
    tasks, because = [NEXT], []
    if len(known) == 0:
        because.append("events have no values, so there are no likes")
    elif liked in (0, len(known)):
        because.append(
            f"{liked} of {len(known)} held-out events are likes (value >= {like_from:g}): "
            "one class only teaches nothing"
        )
    else:
        tasks.append(LIKE)
        because.append(f"{liked / len(known):.0%} of the held-out events are likes")
    for name in outcomes.type_names:
        count = int(outcomes.of_type(name).sum())
        if name in tasks:
            because.append(f"{name} is the name of another task, so that type is none")
        elif min(count, len(outcomes.types) - count) < LEAST_OF_A_TYPE:
            because.append(
                f"{count} of {len(outcomes.types)} are of type {name}: too few of one class"
            )
        else:
            tasks.append(name)
            because.append(f"{count / len(outcomes.types):.0%} are of type {name}")
    return tuple(tasks), "; ".join(because)


def labels_of(
    item_rows: Tensor,
    targets: Jagged,
    outcomes: Outcomes,
    tasks: Sequence[str],
    like_from: float,
) -> Tensor:
    """Say what came of each candidate, [U, k, T]; NaN where it is not known.

    Args:
        item_rows: [U, k].
        targets: Held-out items of each query.
        outcomes: Of the events behind them, M.
        tasks: ``next``, ``like`` or types of events, T names.
        like_from: Least value of a like.

    Raises:
        ValueError: If a task is none of these.
    """
    queries = targets.segments()
    is_target = item_rows[queries] == targets.values[:, None]  # [M, k]
    labels = torch.zeros(*item_rows.shape, len(tasks))
    places = is_target.nonzero()  # [found, 2]
    for task, name in enumerate(tasks):
        told = _told(outcomes, name, like_from)
        labels[queries[places[:, 0]], places[:, 1], task] = told[places[:, 0]]
    return labels.masked_fill((item_rows < 1)[:, :, None], UNOBSERVED)


def _told(outcomes: Outcomes, task: str, like_from: float) -> Tensor:
    values = outcomes.values
    if task == NEXT:
        return torch.ones_like(values)
    if task == LIKE:
        return torch.where(values.isnan(), values, (values >= like_from).float())
    if task not in outcomes.type_names:
        raise ValueError(
            f"no task {task!r}: there are {NEXT}, {LIKE} and, as types of events, "
            f"{', '.join(outcomes.type_names) or 'none'}"
        )
    return outcomes.of_type(task)


class Candidates(NamedTuple):
    """The first places of the blend for some queries."""

    top: TopK
    """Blended lists, [U, k]."""
    numbers: Tensor
    """[U, k, F] float32."""


class RankingExamples(NamedTuple):
    """Queries with their candidates and what came of them."""

    queries: JaggedBatch
    candidates: Candidates
    labels: Tensor
    """[U, k, T], NaN where it is not known."""

    def found(self) -> Tensor:
        """Number the queries with a held-out item among the candidates, ascending."""
        return (self.labels[:, :, 0] == 1).any(1).nonzero()[:, 0]

    def batch(self, chosen: Tensor, places: Tensor) -> RankingBatch:
        """Take some candidates of some queries, [B, C]; a hole becomes the unknown item."""
        index = (chosen[:, None], places)
        rows = self.candidates.top.item_rows[index].clamp(min=0)
        offsets = torch.arange(len(chosen) + 1) * places.shape[1]
        features = {name: feature.take(chosen) for name, feature in self.queries.features.items()}
        return RankingBatch(
            JaggedBatch(features),
            Jagged(rows.flatten(), offsets),
            None,
            self.candidates.numbers[index].flatten(0, 1),
        )

    def whole_batch(self, chosen: Tensor) -> RankingBatch:
        """Take every candidate of some queries, as they are served."""
        rows = self.candidates.top.item_rows[chosen]
        there = rows > 0
        counts = there.sum(1)
        features = {name: feature.take(chosen) for name, feature in self.queries.features.items()}
        return RankingBatch(
            JaggedBatch(features),
            Jagged(rows[there], torch.cat([counts.new_zeros(1), counts.cumsum(0)])),
            None,
            self.candidates.numbers[chosen][there],
        )


class Drawn(NamedTuple):
    """Candidates of one training step."""

    places: Tensor
    """[B, C] in the lists of candidates, one that was taken first."""
    labels: Tensor
    """[B, C, T]; NaN where it is not known, and behind the first where it was taken too."""
    log_weights: Tensor
    """[B, C], log of how many candidates each one stands for."""


def draw_places(
    labels: Tensor, num_hard: int, num_random: int, generator: torch.Generator
) -> Drawn:
    """Draw for each query one taken candidate, the hard ones, and random ones of the rest.

    Args:
        labels: Of queries with a taken candidate, [B, k, T].
        num_hard: First places that are always there.
        num_random: Drawn from those behind.
        generator: Of the step, so that a run that resumes draws the same.
    """
    num_queries, length = labels.shape[:2]
    taken = labels[:, :, 0] == 1
    first = torch.multinomial(taken.float(), 1, generator=generator)  # [B, 1]
    num_hard = min(num_hard, length - 1)
    there = (~labels[:, :, 0].isnan()).sum(1, keepdim=True)  # [B, 1]
    behind = (there - num_hard).clamp(min=1)
    spread = torch.rand(num_queries, num_random, generator=generator) * behind
    drawn = (num_hard + spread.long()).clamp(max=length - 1)
    hard = torch.arange(num_hard).expand(num_queries, -1)
    places = torch.cat([first, hard, drawn], dim=1)
    own = labels.gather(1, places[:, :, None].expand(-1, -1, labels.shape[2])).clone()
    own[:, 1:][own[:, 1:, 0] == 1] = UNOBSERVED
    weights = torch.zeros(places.shape)
    weights[:, 1 + num_hard :] = (behind / num_random).log()
    return Drawn(places, own, weights)
