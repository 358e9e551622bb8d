"""Validation users with the candidates that the served blend gives them: what a ranker learns from.

Sources of candidates were fitted on train, so no event before validation can teach a ranker how far
to trust them: they have seen those. A task is a kind of feedback: ``next``, any event of a
candidate, and ``like``, an event of a high value, where events have values.

Axes: U users, k candidates of each, T tasks, F numbers of a candidate, C candidates of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from torch import Tensor

from pipelines.fit_blend import Examples
from pipelines.model_inputs import HeldOut, ModelInputs
from pipelines.ranker_config import RankerTrainingConfig
from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.top_k import TopK
from recsys.models.ranking_batch import RankingBatch
from recsys.retrieval.candidate_numbers import ranking_candidates
from recsys.retrieval.learned_blend import LearnedBlend

NEXT, LIKE = "next", "like"
UNOBSERVED = float("nan")


def values_of_targets(features: Path, inputs: ModelInputs, held_out: HeldOut) -> Tensor:
    """Look up the value of each held-out event, NaN where it has none, [M].

    Of several events of one user and item the latest counts.
    """
    targets = held_out.targets
    nothing = torch.full((len(targets.values),), UNOBSERVED)
    files = features / "events"
    if not files.exists():
        return nothing
    events = pl.scan_parquet(files / "**" / "*.parquet")
    columns = events.collect_schema().names()
    if "value" not in columns:
        return nothing
    order = [name for name in ("event_time", "sequence_index") if name in columns]
    users = inputs.sequences.users_of(held_out.positions)[targets.segments().numpy()]
    wanted = pl.DataFrame({"user_row": users, "item_row": targets.values.numpy()})
    known = (
        events.join(wanted.lazy().unique(), on=["user_row", "item_row"], how="semi")
        .sort("user_row", "item_row", *order)
        .unique(["user_row", "item_row"], keep="last", maintain_order=True)
        .select("user_row", "item_row", pl.col("value").cast(pl.Float64))
        .collect()
    )
    found = wanted.join(known, on=["user_row", "item_row"], how="left", maintain_order="left")
    return torch.from_numpy(found["value"].fill_null(np.nan).to_numpy().copy()).float()


def tasks_of(values: Tensor, config: RankerTrainingConfig) -> tuple[tuple[str, ...], str]:
    """Choose the tasks that held-out events of these values [M] can teach, and say why."""
    known = values[~values.isnan()]
    liked = int((known >= config.like_from).sum())
    if len(known) == 0:
        return (NEXT,), "events have no values, so there are no likes"
    if liked in (0, len(known)):
        return (NEXT,), (
            f"{liked} of {len(known)} held-out events are likes (value >= {config.like_from:g}): "
            "one class only teaches nothing"
        )
    share = liked / len(known)
    return (NEXT, LIKE), f"{share:.0%} of the held-out events are likes"


class Candidates(NamedTuple):
    """The first places of the blend for some queries."""

    top: TopK
    """Blended lists, [U, k]."""
    numbers: Tensor
    """[U, k, F] float32."""


def candidates_of(examples: Examples, blend: LearnedBlend, k: int, block: int = 512) -> Candidates:
    """Merge the lists of users as serving does."""
    parts = []
    for rows in torch.split(torch.arange(len(examples.history_lengths)), block):
        part = examples.of(rows, blend.sources)
        found = ranking_candidates(blend, part.lists, part.history_lengths, part.item_counts, k)
        parts.append((found.blended.scores, found.blended.item_rows, found.numbers))
    scores, rows, numbers = (torch.cat(part) for part in zip(*parts, strict=True))
    return Candidates(TopK(scores, rows), numbers)


def labels_of(
    item_rows: Tensor, targets: Jagged, values: Tensor, tasks: Sequence[str], like_from: float
) -> Tensor:
    """Say what came of each candidate, [U, k, T]; NaN where it is not known.

    Args:
        item_rows: [U, k].
        targets: Held-out items of each user.
        values: Of the events behind them, [M].
    """
    users = targets.segments()
    is_target = item_rows[users] == targets.values[:, None]  # [M, k]
    labels = torch.zeros(*item_rows.shape, len(tasks))
    liked = torch.where(values.isnan(), values, (values >= like_from).float())
    for task, name in enumerate(tasks):
        told = torch.ones_like(values) if name == NEXT else liked
        places = is_target.nonzero()  # [found, 2]
        labels[users[places[:, 0]], places[:, 1], task] = told[places[:, 0]]
    return labels.masked_fill((item_rows < 1)[:, :, None], UNOBSERVED)


class RankingExamples(NamedTuple):
    """Users with their candidates and what came of them."""

    queries: JaggedBatch
    candidates: Candidates
    labels: Tensor
    """[U, k, T], NaN where it is not known."""

    def found(self) -> Tensor:
        """Number the users with a held-out item among the candidates, ascending."""
        return (self.labels[:, :, 0] == 1).any(1).nonzero()[:, 0]

    def batch(self, users: Tensor, places: Tensor) -> RankingBatch:
        """Take some candidates of some users, [B, C]; a hole becomes the unknown item."""
        index = (users[:, None], places)
        rows = self.candidates.top.item_rows[index].clamp(min=0)
        offsets = torch.arange(len(users) + 1) * places.shape[1]
        features = {name: feature.take(users) for name, feature in self.queries.features.items()}
        return RankingBatch(
            JaggedBatch(features),
            Jagged(rows.flatten(), offsets),
            None,
            self.candidates.numbers[index].flatten(0, 1),
        )

    def whole_batch(self, users: Tensor) -> RankingBatch:
        """Take every candidate of some users, as they are served."""
        rows = self.candidates.top.item_rows[users]
        there = rows > 0
        counts = there.sum(1)
        features = {name: feature.take(users) for name, feature in self.queries.features.items()}
        return RankingBatch(
            JaggedBatch(features),
            Jagged(rows[there], torch.cat([counts.new_zeros(1), counts.cumsum(0)])),
            None,
            self.candidates.numbers[users][there],
        )


class Drawn(NamedTuple):
    """Candidates of one training step."""

    places: Tensor
    """[B, C] in the lists of candidates, one that was taken first."""
    labels: Tensor
    """[B, C, T]; NaN where it is not known, and behind the first where it was taken too."""
    log_weights: Tensor
    """[B, C], log of how many candidates each one stands for."""


def draw_places(labels: Tensor, config: RankerTrainingConfig, generator: torch.Generator) -> Drawn:
    """Draw for each user one taken candidate, the hard ones, and random ones of the rest.

    Args:
        labels: Of users with a taken candidate, [B, k, T].
        generator: Of the step, so that a run that resumes draws the same.
    """
    num_users, length = labels.shape[:2]
    taken = labels[:, :, 0] == 1
    first = torch.multinomial(taken.float(), 1, generator=generator)  # [B, 1]
    num_hard = min(config.num_hard, length - 1)
    there = (~labels[:, :, 0].isnan()).sum(1, keepdim=True)  # [B, 1]
    behind = (there - num_hard).clamp(min=1)
    spread = torch.rand(num_users, config.num_random, generator=generator) * behind
    drawn = (num_hard + spread.long()).clamp(max=length - 1)
    hard = torch.arange(num_hard).expand(num_users, -1)
    places = torch.cat([first, hard, drawn], dim=1)
    own = labels.gather(1, places[:, :, None].expand(-1, -1, labels.shape[2])).clone()
    own[:, 1:][own[:, 1:, 0] == 1] = UNOBSERVED
    weights = torch.zeros(places.shape)
    weights[:, 1 + num_hard :] = (behind / config.num_random).log()
    return Drawn(places, own, weights)
