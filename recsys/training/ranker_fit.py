"""Train a ranker on candidates of queries of which it is known what was taken.

Axes: U queries, k candidates of each, T tasks, B queries of a step, C candidates of a step, M
candidates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from recsys.data.order import BatchOrder
from recsys.models.ranker.batch import Feedback, RankingBatch
from recsys.models.ranker.model import Ranker
from recsys.models.ranker.network import Correction
from recsys.training.expert_balance import settling
from recsys.training.optim import AdamWConfig, ScheduleConfig
from recsys.training.passes import TrainingConfig
from recsys.training.ranking_examples import Drawn, RankingExamples, draw_places

BLOCK = 256
"""Queries scored at a time."""
NEVER = -1e4
"""Logit of what is no candidate."""


@dataclass(frozen=True, kw_only=True)
class RankerFitConfig(TrainingConfig):
    """What a ranker learns from and by; its examples are queries with a taken candidate.

    Nothing is left to stop it by, so it makes all its passes. ``epochs_per_evaluation``,
    ``validation_users`` and ``patience`` are not read.
    """

    num_candidates: int = 200
    """First places of the blend that are ranked, in training, in measuring and in serving."""
    num_hard: int = 30
    """Candidates of a training step that stand first in the blend."""
    num_random: int = 30
    """Candidates of a training step that are drawn from the places behind those."""
    task_share: float = 0.1
    """Weight of the tasks' own cross entropies, which make logits probabilities, beside the
    listwise loss, which makes them an order."""
    shown_share: float = 0.1
    """Weight of what was shown and taken or left, where there are shown lists."""
    line_l2: float = 20.0
    """Pulls the straight line towards 0 that is fitted to the numbers before the network learns; in
    queries."""
    line_queries: int = 8192
    """Queries that it is fitted on, evenly spaced."""
    like_from: float = 4.0
    """Events of at least this value are likes, where events have values."""
    batch_size: int = 64
    max_epochs: float = 4.0
    warmup_share: float = 0.05
    optimizer: AdamWConfig = field(default_factory=lambda: AdamWConfig(weight_decay=0.1))
    schedule: ScheduleConfig = field(
        default_factory=lambda: ScheduleConfig(learning_rate=5e-4, decay="linear", final_share=0.02)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("num_hard", "num_random", "line_queries"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        if not (math.isfinite(self.line_l2) and self.line_l2 > 0):
            raise ValueError(f"line_l2 must be > 0 and finite, got {self.line_l2}")
        if self.num_candidates <= self.num_hard:
            raise ValueError(
                f"num_candidates must be more than num_hard = {self.num_hard}, got "
                f"{self.num_candidates}"
            )
        for name in ("task_share", "shown_share"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ValueError(f"{name} must be >= 0 and finite, got {getattr(self, name)}")
        if not math.isfinite(self.like_from):
            raise ValueError(f"like_from must be finite, got {self.like_from}")


def listwise_loss(logits: Tensor, drawn: Drawn) -> Tensor:
    """Cross entropy of the taken candidate, the first, among those of its query, a scalar.

    The mean over tasks of the mean over queries whose first candidate has the task's feedback.

    Args:
        logits: [B, C, T].
        drawn: The candidates; those without a label are none of the list.
    """
    absent = drawn.labels[:, :, :1].isnan()
    among = (logits + drawn.log_weights[:, :, None]).masked_fill(absent, NEVER).log_softmax(1)
    wanted = (drawn.labels[:, 0] == 1).to(among.dtype)  # [B, T]
    per_task = -(among[:, 0] * wanted).sum(0) / wanted.sum(0).clamp(min=1)
    return per_task.mean()


def ranker_loss(
    model: Ranker,
    examples: RankingExamples,
    chosen: Tensor,
    config: RankerFitConfig,
    seed: int,
    device: torch.device,
) -> Callable[[int], Tensor]:
    """Fit a correction's straight line, and give the loss of each step as ``step_losses`` does.

    Experts are kept evenly used by the queries' whole lists (``expert_balance``).

    Args:
        model: On ``device``; a correction of a base number learns its scales and weights here.
        examples: On the host.
        chosen: Queries with a taken candidate, [U].
        config: Sizes of a step, weights of the losses.
        seed: Of the order and the draws.
        device: Where a step's candidates go.
    """
    if model.correction is not None:
        there = examples.candidates.top.item_rows[chosen] > 0
        model.correction.fit_scale(examples.candidates.numbers[chosen][there].to(device))
        fit_line(model.correction, examples, chosen, config)
    losses = step_losses(model, examples, chosen, config, seed, device)
    settle = settling(model, examples.candidates.top.item_rows[chosen], device)

    def loss_at(step: int) -> Tensor:
        settle(step)
        return losses(step)

    return loss_at


def fit_line(
    correction: Correction, examples: RankingExamples, chosen: Tensor, config: RankerFitConfig
) -> None:
    """Fit the weights of a correction by the whole lists, each task for itself (convex).

    The softmax over a query's candidates is to give most to those with the task's feedback. What
    many small steps reach in many passes, if at all, Newton-like ones reach in seconds, so that
    the network behind learns what a line cannot say.

    Args:
        correction: Its scales are fitted; its weights are set here.
        examples: On the host.
        chosen: Queries with a taken candidate, [U].
        config: Names the pull towards 0 and how many queries are read.
    """
    device, count = correction.weight.device, min(len(chosen), config.line_queries)
    read = chosen[torch.linspace(0, len(chosen) - 1, count).long()]
    numbers = examples.candidates.numbers[read].to(device)  # [Q, k, F]
    base = correction.base(numbers)[..., 0].masked_fill(
        (examples.candidates.top.item_rows[read] < 1).to(device), NEVER
    )
    numbers = correction.standardised(numbers)
    for task in range(len(correction.weight)):
        wanted = (examples.labels[read][:, :, task] == 1).to(device)
        wanted = wanted / wanted.sum(1, keepdim=True).clamp(min=1)  # [Q, k]
        weight = _fitted_line(numbers, base, wanted, config.line_l2)
        with torch.no_grad():
            correction.weight[task] = weight


def _fitted_line(numbers: Tensor, base: Tensor, wanted: Tensor, l2: float) -> Tensor:
    """Maximise the likelihood of what is wanted [Q, k] by weights of numbers [Q, k, F], [F]."""
    weight = torch.zeros(numbers.shape[2], device=numbers.device, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight], max_iter=50, line_search_fn="strong_wolfe")
    count = wanted.sum().clamp(min=1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        among = (base + numbers @ weight).log_softmax(1)
        loss = (l2 / 2 * weight.square().sum() - (among * wanted).sum()) / count
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with torch.enable_grad():
        optimizer.step(closure)  # type: ignore[no-untyped-call]
    return weight.detach()


def step_losses(
    model: Ranker,
    examples: RankingExamples,
    chosen: Tensor,
    config: RankerFitConfig,
    seed: int,
    device: torch.device,
) -> Callable[[int], Tensor]:
    """Give the loss of each step, which depends on the step alone; arguments as ``ranker_loss``."""
    order = BatchOrder(len(chosen), min(config.batch_size, len(chosen)), seed)

    def loss_at(step: int) -> Tensor:
        queries = chosen[torch.from_numpy(order.indices(step))]
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        labels = examples.labels[queries]
        drawn = draw_places(labels, config.num_hard, config.num_random, generator)
        ranked = model(on_device(examples.batch(queries, drawn.places), device))
        drawn = Drawn(*(part.to(device) for part in drawn))
        listwise = listwise_loss(ranked.logits.view(*drawn.labels.shape), drawn)
        tasks = model.loss_of(ranked, Feedback(drawn.labels.flatten(0, 1)))
        return listwise + config.task_share * tasks

    return loss_at


def on_device(batch: RankingBatch, device: torch.device) -> RankingBatch:
    """Move a batch."""
    numbers = batch.candidate_dense
    return RankingBatch(
        batch.queries.to(device),
        batch.candidates.to(device),
        None,
        None if numbers is None else numbers.to(device),
    )


def device_of(ranker: Ranker) -> torch.device:
    """Say where a ranker's weights are."""
    return next(ranker.parameters()).device


def logits_of(ranker: Ranker, examples: RankingExamples, chosen: Tensor) -> Tensor:
    """Predict every candidate of queries as they are served, [M, T]."""
    device = device_of(ranker)
    parts = [
        ranker.logits(on_device(examples.whole_batch(part), device)).cpu()
        for part in torch.split(chosen, BLOCK)
    ]
    return torch.cat(parts)


def scores_of(ranker: Ranker, examples: RankingExamples, chosen: Tensor) -> Tensor:
    """Score every candidate of queries as they are served, [U, k]; -inf at holes."""
    parts = [
        scores_as_served(
            ranker, examples.whole_batch(part), examples.candidates.top.item_rows[part] > 0
        )
        for part in torch.split(chosen, BLOCK)
    ]
    return torch.cat(parts)


def scores_as_served(ranker: Ranker, batch: RankingBatch, there: Tensor) -> Tensor:
    """Score candidates by tiles and lay them out, -inf at holes, [B, k].

    Args:
        there: Which places of the lists the batch's candidates are, [B, k].
    """
    scores = torch.full(there.shape, -torch.inf)
    scores[there] = ranker.score(on_device(batch, device_of(ranker))).cpu()
    return scores
