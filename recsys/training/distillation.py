"""A small ranker learns from a large one, or from its own second opinion of noisy labels.

Soft targets: Hinton et al. 2015, arXiv:1503.02531. Self-auxiliary targets, after the idea of Zhang
et al., RecSys 2024 (doi:10.1145/3640457.3688041): positives are trusted; a negative may only be an
item that was not looked at, so its target is what an auxiliary head, trained on the labels as they
are, believes.

Axes: U queries, B queries of a step, k candidates of each, M candidates, T tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from recsys.data.order import BatchOrder
from recsys.models.ranker.batch import Feedback, RankingBatch
from recsys.models.ranker.model import Ranker
from recsys.training.ranker_fit import NEVER, device_of
from recsys.training.ranking_examples import RankingExamples


@dataclass(frozen=True, kw_only=True)
class DistillationConfig:
    """How much is learned from the teacher, and how soft it speaks."""

    soft_share: float = 0.5
    """Share of the loss that compares with the teacher; the rest compares with the labels."""
    temperature: float = 1.0
    """Divides both logits; above 1, differences among unlikely candidates count more."""

    def __post_init__(self) -> None:
        if not 0 <= self.soft_share <= 1:
            raise ValueError(f"soft_share must be in [0, 1], got {self.soft_share}")
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise ValueError(f"temperature must be > 0 and finite, got {self.temperature}")


def soft_target_loss(logits: Tensor, teacher_logits: Tensor, temperature: float) -> Tensor:
    """Cross entropy with the teacher's probabilities, [M, T]; its gradient's size keeps.

    It is smallest, though not zero, where both logits are equal.

    Raises:
        ValueError: If the shapes differ: another number of candidates or of tasks.
    """
    if logits.shape != teacher_logits.shape:
        raise ValueError(
            f"the student predicts {tuple(logits.shape)} (candidates, tasks) and the teacher "
            f"{tuple(teacher_logits.shape)}; give both the same batch and tasks"
        )
    targets = torch.sigmoid(teacher_logits.detach() / temperature)
    losses = functional.binary_cross_entropy_with_logits(
        logits / temperature, targets, reduction="none"
    )
    return losses * temperature**2


def distillation_loss(
    student: Ranker,
    teacher_logits: Tensor,
    batch: RankingBatch,
    feedback: Feedback,
    config: DistillationConfig,
) -> Tensor:
    """Loss of a student on a batch that its teacher has seen, a scalar.

    Args:
        teacher_logits: The teacher's logits of the batch's candidates, of an examined item,
            [M, T], in the order of the student's tasks.
    """
    ranked = student(batch)
    soft = soft_target_loss(ranked.logits, teacher_logits, config.temperature).mean(0).sum()
    hard = student.loss_of(ranked, feedback)
    return config.soft_share * soft + (1 - config.soft_share) * hard


def self_auxiliary_targets(labels: Tensor, auxiliary_logits: Tensor, trust: float) -> Tensor:
    """Soften negatives by what an auxiliary head believes, [M, T].

    Args:
        labels: 0 or 1, NaN where not observed.
        auxiliary_logits: Of a head trained on these labels as they are; no gradient reaches it.
        trust: Share of its belief that a negative's target takes, in [0, 1].
    """
    if not 0 <= trust <= 1:
        raise ValueError(f"trust must be in [0, 1], got {trust}")
    believed = trust * torch.sigmoid(auxiliary_logits.detach())
    return torch.where(labels == 0, believed, labels)


def listwise_soft_loss(
    logits: Tensor, teacher_logits: Tensor, there: Tensor, temperature: float
) -> Tensor:
    """Cross entropy of both orders of each query's candidates, the mean of queries and tasks.

    Args:
        logits: [B, k, T].
        teacher_logits: [B, k, T], anything where there is no candidate.
        there: Which are candidates, [B, k]; each query has one.
        temperature: Divides both; the loss is multiplied by its square.
    """
    absent = ~there[:, :, None]
    wanted = (teacher_logits.detach() / temperature).masked_fill(absent, NEVER).softmax(1)
    said = (logits / temperature).masked_fill(absent, NEVER).log_softmax(1)
    return -(wanted * said).sum(1).mean() * temperature**2


def taught_by_lists(
    student: Ranker,
    examples: RankingExamples,
    chosen: Tensor,
    teacher_logits: Tensor,
    config: DistillationConfig,
    batch_size: int,
    seed: int,
) -> Callable[[int], Tensor]:
    """Give the loss of each step against the teacher's order of whole lists.

    Queries of which nothing was taken teach too: labels say nothing of their order, a teacher does.

    Args:
        student: Training; ``ranker_fit.ranker_loss`` has fitted its scales.
        examples: On the host.
        chosen: Queries that have candidates, [P].
        teacher_logits: Of every query and candidate, [U, k, T]; tasks as the student's.
        config: The temperature; the share is the caller's.
        batch_size: Queries of a step.
        seed: Of the order.
    """
    order = BatchOrder(len(chosen), min(batch_size, len(chosen)), seed)
    device = device_of(student)

    def loss_at(step: int) -> Tensor:
        queries = chosen[torch.from_numpy(order.indices(step))]
        there = examples.candidates.item_rows[queries] > 0
        flat = student(examples.whole_batch(queries).to(device)).logits
        logits = flat.new_zeros(*there.shape, flat.shape[1])
        logits = logits.masked_scatter(there[:, :, None].to(device), flat)
        said = teacher_logits[queries].to(device)
        return listwise_soft_loss(logits, said, there.to(device), config.temperature)

    return loss_at
