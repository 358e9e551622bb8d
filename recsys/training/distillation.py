"""A two-tower learns from the lists of a larger model: soft targets over the whole catalogue.

Soft targets: Hinton et al. 2015, arXiv:1503.02531; over ranked lists: Tang and Wang 2018,
arXiv:1809.07428. Labels keep their share of the loss.

Axes: B queries, K items of the teacher's list, N item rows, D width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from recsys.data.batch import Jagged, JaggedBatch, latest
from recsys.data.top_k import TopK
from recsys.models.two_tower import TwoTower

LEFT_OUT = -1e4
"""Score of what no list may hold: its probability is 0, and 0 times its logarithm is no NaN."""


@dataclass(frozen=True, kw_only=True)
class DistillationConfig:
    """How much a student learns from its teacher.

    Raises:
        ValueError: If a number is out of its range.
    """

    soft_share: float = 0.5
    """Share of the loss against the teacher's lists; the rest is against the labels."""
    temperature: float = 1.0
    """Divides the logits of both; above 1, differences among unlikely items count more."""
    list_length: int = 100
    """Items of the teacher's list for each query."""

    def __post_init__(self) -> None:
        if not 0 <= self.soft_share <= 1:
            raise ValueError(f"soft_share must be in [0, 1], got {self.soft_share}")
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise ValueError(f"temperature must be > 0 and finite, got {self.temperature}")
        if self.list_length < 1:
            raise ValueError(f"list_length must be >= 1, got {self.list_length}")


def catalogue_logits(queries: Tensor, items: Tensor, seen: Jagged, temperature: float) -> Tensor:
    """Score every item for each query, [B, D] and [N, D] -> [B, N]; items seen get ``LEFT_OUT``."""
    # Full precision: bfloat16 loses what a teacher tells apart in its first places.
    with torch.autocast(queries.device.type, enabled=False):
        scores = queries.float() @ items.float().T / temperature
    out = torch.zeros_like(scores, dtype=torch.bool)
    out[:, 0] = True
    out[seen.segments(), seen.values] = True
    return scores.masked_fill(out, LEFT_OUT)


def student_logits(model: TwoTower, queries: JaggedBatch) -> Tensor:
    """Score every item for each query with gradients, [B, N]; items seen get ``LEFT_OUT``."""
    device = next(model.parameters()).device
    inputs = model.item_inputs(torch.arange(model.num_item_rows, device=device))  # [N, D]
    history = latest(queries["history"], model.config.max_history)
    read = functional.embedding(history.values, inputs)
    vectors = model.query_tower(queries, history, read)
    items = model.normalized(inputs.float())
    return catalogue_logits(vectors, items, history, model.config.temperature)


def soft_list_loss(logits: Tensor, teacher: TopK, temperature: float) -> Tensor:
    """Cross entropy of a student with its teacher's probabilities, the mean of queries with a list.

    Args:
        logits: Of every item by the student, [B, N].
        teacher: Lists of items with logarithms of their probabilities up to a constant, [B, K].
        temperature: Divides both; the loss is multiplied by its square, which keeps the gradient's
            size.
    """
    there = teacher.item_rows >= 0
    targets = (teacher.scores.float() / temperature).masked_fill(~there, LEFT_OUT).softmax(1)
    log_probabilities = functional.log_softmax(logits.float() / temperature, dim=1)
    listed = log_probabilities.gather(1, teacher.item_rows.clamp(min=0)).masked_fill(~there, 0.0)
    return -(targets * listed).sum() / there.any(1).sum().clamp(min=1) * temperature**2


def distillation_loss(
    student: TwoTower,
    queries: JaggedBatch,
    labels: Tensor,
    teacher: TopK,
    config: DistillationConfig,
) -> Tensor:
    """Mix the student's own loss on labels with its loss against the teacher's lists, a scalar.

    Args:
        queries: What was known before each label.
        labels: Item rows, [B].
        teacher: The teacher's lists for these queries, [B, K].
    """
    hard = student.loss(queries, labels)
    if config.soft_share == 0:
        return hard
    soft = soft_list_loss(student_logits(student, queries), teacher, config.temperature)
    return config.soft_share * soft + (1 - config.soft_share) * hard
