"""Labelled queries with their candidates: what a ranker learns from and is measured on.

A task is a kind of feedback: ``next``, the event that followed; ``like``, an event of a high value,
where events have values; and each type of event, where there are several (``purchase``).

Axes: U queries, k candidates of each, T tasks, M held-out events, B queries of a step, C candidates
of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch, latest
from recsys.models.ranker.config import RankerInputs
from recsys.models.ranker.network import Candidates, RankingBatch

NEXT, LIKE = "next", "like"
UNOBSERVED = float("nan")
MIN_OF_A_TYPE = 20
"""Events of a type, and of all others, below which it is no task."""

SCALE = 5.0
"""Times ``like_from`` that a rating is, at most."""


class Outcomes(NamedTuple):
    """Values and types of held-out events."""

    values: Tensor
    """[M], NaN where an event has none."""
    types: Tensor
    """[M, K] bool, types of the event and of those that it led to."""
    type_names: tuple[str, ...] = ()

    @classmethod
    def of_values(cls, values: Tensor) -> Outcomes:
        return cls(values, torch.zeros(len(values), 0, dtype=torch.bool))

    def of_type(self, name: str) -> Tensor:
        """Mark the events of a type, [M] float, 0 or 1."""
        return self.types[:, self.type_names.index(name)].float()


def choose_tasks(outcomes: Outcomes, like_from: float) -> tuple[tuple[str, ...], str]:
    """Choose the tasks that held-out events have labels for, with the reason.

    A type of event is a task where it has at least ``MIN_OF_A_TYPE`` events and others have too.
    Values far above ``like_from`` are prices or amounts, so they are no likes.
    """
    known = outcomes.values[~outcomes.values.isnan()]
    liked = int((known >= like_from).sum())
    tasks, reasons = [NEXT], []
    if len(known) == 0:
        reasons.append("events have no values, so there are no likes")
    elif float(known.max()) > SCALE * like_from > 0:
        reasons.append(
            f"values reach {float(known.max()):g}, so they are no ratings of which {like_from:g} "
            "is a like; set ranker_training.like_from if they are"
        )
    elif liked in (0, len(known)):
        reasons.append(
            f"{liked} of {len(known)} held-out events are likes (value >= {like_from:g}): "
            "one class only, nothing to learn"
        )
    else:
        tasks.append(LIKE)
        reasons.append(f"{liked / len(known):.0%} of the held-out events are likes")
    for name in outcomes.type_names:
        count = int(outcomes.of_type(name).sum())
        if name in tasks:
            reasons.append(f"{name} is the name of another task, so that type is no task")
        elif min(count, len(outcomes.types) - count) < MIN_OF_A_TYPE:
            reasons.append(
                f"{count} of {len(outcomes.types)} are of type {name}: too few of one class"
            )
        else:
            tasks.append(name)
            reasons.append(f"{count / len(outcomes.types):.0%} are of type {name}")
    return tuple(tasks), "; ".join(reasons)


def labels_of(
    item_rows: Tensor, targets: Jagged, outcomes: Outcomes, tasks: Sequence[str], like_from: float
) -> Tensor:
    """Label each candidate, [U, k, T]; NaN where it is not known.

    Args:
        item_rows: [U, k].
        targets: Held-out items of each query.
    """
    queries = targets.segments()
    is_target = item_rows[queries] == targets.values[:, None]  # [M, k]
    labels = torch.zeros(*item_rows.shape, len(tasks))
    places = is_target.nonzero()  # [found, 2]
    for task, name in enumerate(tasks):
        of_event = _event_labels(outcomes, name, like_from)
        labels[queries[places[:, 0]], places[:, 1], task] = of_event[places[:, 0]]
    return labels.masked_fill((item_rows < 1)[:, :, None], UNOBSERVED)


def _event_labels(outcomes: Outcomes, task: str, like_from: float) -> Tensor:
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


class RankingExamples(NamedTuple):
    """Labelled queries with their candidates."""

    queries: JaggedBatch
    targets: Jagged
    """Held-out items of each query."""
    candidates: Candidates
    labels: Tensor
    """[U, k, T], NaN where it is not known."""

    def found(self) -> Tensor:
        """Select the queries with a held-out item among the candidates, ascending."""
        return (self.labels[:, :, 0] == 1).any(1).nonzero()[:, 0]

    def with_half(self, chosen: Tensor, other: RankingExamples) -> RankingExamples:
        """Take candidates and labels of the chosen queries [U] from other examples of the same."""
        at = chosen[:, None]
        (rows, features), (others, their_features) = self.candidates, other.candidates
        candidates = Candidates(
            rows.where(~at, others), features.where(~at[:, :, None], their_features)
        )
        labels = self.labels.where(~at[:, :, None], other.labels)
        return self._replace(candidates=candidates, labels=labels)

    def among(self, refused: Tensor) -> RankingExamples:
        """Keep, of queries with refused candidates [U, k], those and the positives alone."""
        kept = refused | (self.labels[:, :, 0] == 1) | ~refused.any(1, keepdim=True)
        order = kept.int().sort(dim=1, descending=True, stable=True).indices
        index, gone = (torch.arange(len(order))[:, None], order), ~kept
        rows = self.candidates.item_rows.masked_fill(gone, -1)
        features = self.candidates.features.masked_fill(gone[:, :, None], 0)
        labels = self.labels.masked_fill(gone[:, :, None], UNOBSERVED)
        candidates = Candidates(rows[index], features[index])
        return self._replace(candidates=candidates, labels=labels[index])

    def batch(self, chosen: Tensor, places: Tensor) -> RankingBatch:
        """Select candidates of some queries, [B, C]; an empty place becomes the unknown item."""
        index = (chosen[:, None], places)
        rows = self.candidates.item_rows[index].clamp(min=0)
        offsets = torch.arange(len(chosen) + 1) * places.shape[1]
        return RankingBatch(
            self.queries_of(chosen),
            Jagged(rows.flatten(), offsets),
            self.candidates.features[index].flatten(0, 1),
        )

    def whole_batch(self, chosen: Tensor) -> RankingBatch:
        """Select every candidate of some queries, as they are served."""
        return self.candidates.take(chosen).batch(self.queries_of(chosen))

    def queries_of(self, chosen: Tensor) -> JaggedBatch:
        features = self.queries.features.items()
        return JaggedBatch({name: feature.take(chosen) for name, feature in features})


class Drawn(NamedTuple):
    """Candidates of one training step."""

    places: Tensor
    """[B, C] in the lists of candidates, a positive first."""
    labels: Tensor
    """[B, C, T]; NaN where it is not known, and for further positives."""
    log_weights: Tensor
    """[B, C], log of how many candidates each one represents."""


def draw_places(
    labels: Tensor, num_hard: int, num_random: int, generator: torch.Generator
) -> Drawn:
    """Draw for each query one positive, the hard negatives, and random ones of the rest.

    Args:
        labels: Of queries with a positive candidate, [B, k, T].
    """
    num_queries, length = labels.shape[:2]
    positive = labels[:, :, 0] == 1
    first = torch.multinomial(positive.float(), 1, generator=generator)  # [B, 1]
    num_hard = min(num_hard, length - 1)
    count = (~labels[:, :, 0].isnan()).sum(1, keepdim=True)  # [B, 1]
    behind = (count - num_hard).clamp(min=1)
    spread = torch.rand(num_queries, num_random, generator=generator) * behind
    drawn = (num_hard + spread.long()).clamp(max=length - 1)
    hard = torch.arange(num_hard).expand(num_queries, -1)
    places = torch.cat([first, hard, drawn], dim=1)
    own = labels.gather(1, places[:, :, None].expand(-1, -1, labels.shape[2])).clone()
    own[:, 1:][own[:, 1:, 0] == 1] = UNOBSERVED
    weights = torch.zeros(places.shape)
    weights[:, 1 + num_hard :] = (behind / num_random).log()
    return Drawn(places, own, weights)


class FixedLists(NamedTuple):
    """Sizes of a step of one shape, which can be a CUDA graph.

    Histories alone differ in length: their events share room for the longest ones. The rest of it
    is never read, and holds all items in turn: gradients of equal rows wait for each other.
    """

    num_queries: int
    num_candidates: int
    num_tasks: int
    num_features: int
    """F; 0 for a ranker that reads none."""
    max_history: int
    num_item_rows: int
    query_features: tuple[str, ...]
    """Features of the query, one value each."""

    @classmethod
    def of(
        cls, inputs: RankerInputs, num_queries: int, num_candidates: int, max_history: int
    ) -> FixedLists:
        return cls(
            num_queries=num_queries,
            num_candidates=num_candidates,
            num_tasks=len(inputs.tasks),
            num_features=len(inputs.candidate_dense),
            max_history=max_history,
            num_item_rows=inputs.num_item_rows,
            query_features=(
                *(f"user.{name}" for name in inputs.user_features),
                *(f"context.{name}" for name in inputs.context_features),
            ),
        )

    def integers(self) -> list[int]:
        """Count the integers of each part: events, offsets, candidates, features of queries."""
        queries = self.num_queries
        parts = [queries * self.max_history, queries + 1, queries * self.num_candidates]
        return [*parts, *([queries] * len(self.query_features))]

    def floats(self) -> list[int]:
        """Count the numbers of each part: features, labels, weights of candidates."""
        candidates = self.num_queries * self.num_candidates
        return [candidates * self.num_features, candidates * self.num_tasks, candidates]

    def inputs(self, batch: RankingBatch, drawn: Drawn) -> Tensor | None:
        """Write a step as integers on the host, [S]; None if it does not fit.

        Args:
            batch: The candidates drawn for queries, on the host.
        """
        queries = batch.queries
        single = all(len(queries[one].values) == self.num_queries for one in self.query_features)
        if drawn.places.shape != (self.num_queries, self.num_candidates) or not single:
            return None
        history = latest(queries["history"], self.max_history)
        values = torch.arange(self.integers()[0]) % self.num_item_rows
        values[: len(history.values)] = history.values
        features = (queries[name].values for name in self.query_features)
        numbers = [drawn.labels.flatten(), drawn.log_weights.flatten()]
        if batch.candidate_dense is not None:
            numbers.insert(0, batch.candidate_dense.flatten())
        floats = torch.cat(numbers)
        even = torch.cat([floats, floats.new_zeros(len(floats) % 2)])
        parts = [values, history.offsets, batch.candidates.values, *features]
        return torch.cat([*parts, even.view(torch.int64)])

    def read(self, inputs: Tensor) -> tuple[RankingBatch, Drawn]:
        """Read what ``inputs`` laid out, on any device; places are not needed any more."""
        integers, floats = self.integers(), self.floats()
        events, offsets, candidates, *features = torch.split(inputs[: sum(integers)], integers)
        numbers = inputs[sum(integers) :].view(torch.float32)[: sum(floats)]
        dense, labels, weights = torch.split(numbers, floats)
        queries = {"history": Jagged(events, offsets)}
        for name, rows in zip(self.query_features, features, strict=True):
            queries[name] = Jagged.one_each(rows)
        shape = (self.num_queries, self.num_candidates)
        ends = torch.arange(self.num_queries + 1, device=inputs.device) * self.num_candidates
        batch = RankingBatch(
            JaggedBatch(queries),
            Jagged(candidates, ends),
            dense.view(-1, self.num_features) if self.num_features else None,
        )
        drawn = Drawn(candidates.view(shape), labels.view(*shape, -1), weights.view(shape))
        return batch, drawn
