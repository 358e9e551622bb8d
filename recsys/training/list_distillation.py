"""A small retriever learns from the lists of a large one: soft targets over the whole catalogue.

Soft targets: Hinton et al. 2015, arXiv:1503.02531; over ranked lists: Tang and Wang 2018,
arXiv:1809.07428. A teacher speaks after every event of a history, also after the last, which no
label follows; labels keep their share of the loss (``DistillationConfig.soft_share``).

Axes: B queries, M queries or events that the teacher speaks after, K items of its list, N item
rows, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from recsys.data.batch import Jagged, JaggedBatch, latest
from recsys.models.item_tower import CatalogueModel
from recsys.models.sequence import SequenceModel, seen_before
from recsys.models.two_tower import TwoTower

LEFT_OUT = -1e4
"""Score of what no list may hold: its probability is 0, and 0 times its logarithm is no NaN."""


def _item_inputs(model: CatalogueModel) -> Tensor:
    """Encode the catalogue, with gradients while the model trains, [N, D]."""
    if not model.training:
        return model.all_item_inputs()
    device = next(model.parameters()).device
    return model.item_inputs(torch.arange(model.num_item_rows, device=device))


def _scores(queries: Tensor, items: Tensor, seen: Jagged, temperature: float) -> Tensor:
    # Whole precision: what a teacher tells apart in its first places is lost in bfloat16.
    with torch.autocast(queries.device.type, enabled=False):
        scores = queries.float() @ items.float().T / temperature
    out = torch.zeros_like(scores, dtype=torch.bool)
    out[:, 0] = True
    out[seen.segments(), seen.values] = True
    return scores.masked_fill(out, LEFT_OUT)


def scores_after_events(model: SequenceModel, batch: JaggedBatch) -> Tensor:
    """Score every item after each event of each history, [M, N]; what was seen is left out.

    Args:
        batch: ``history``, item rows of the catalogue, and ``history.times`` where there are times.
    """
    limit = model.config.max_length
    history = latest(batch["history"], limit)
    times = latest(batch["history.times"], limit).values if "history.times" in batch else None
    inputs = _item_inputs(model)
    encoded = model.encoder(functional.embedding(history.values, inputs), history, times)
    items = model.normalized(inputs.float())
    return _scores(encoded, items, seen_before(history), model.config.temperature)


def scores_of_queries(model: TwoTower, queries: JaggedBatch) -> Tensor:
    """Score every item for each query, [B, N]; what was seen is left out."""
    history = latest(queries["history"], model.config.max_history)
    inputs = _item_inputs(model)
    vectors = model.query_tower(queries, history, functional.embedding(history.values, inputs))
    return _scores(vectors, model.normalized(inputs.float()), history, model.config.temperature)


class Ensemble:
    """Several sequence models as one teacher: the mean of their scores."""

    def __init__(self, members: Sequence[SequenceModel]) -> None:
        """Take trained models of one catalogue.

        Raises:
            ValueError: If there is none, or they have different numbers of items.
        """
        if not members:
            raise ValueError("an ensemble needs at least one model")
        if len(sizes := {one.num_item_rows for one in members}) > 1:
            raise ValueError(f"models of one ensemble rank the same items, got {sorted(sizes)}")
        self.members = tuple(one.eval() for one in members)

    @torch.no_grad()
    def scores_after_events(self, batch: JaggedBatch) -> Tensor:
        """Score every item after each event of each history, [M, N]."""
        total = scores_after_events(self.members[0], batch)
        for member in self.members[1:]:
            total += scores_after_events(member, batch)
        return total / len(self.members)

    @torch.no_grad()
    def score(self, queries: JaggedBatch) -> Tensor:
        """Score every item for each query by the mean of the cosines, [B, N]; row 0 is -inf."""
        total = self.members[0].score(queries)
        for member in self.members[1:]:
            total += member.score(queries)
        return total / len(self.members)


def soft_list_loss(
    scores: Tensor, teacher_scores: Tensor, temperature: float, rows: Tensor | None = None
) -> Tensor:
    """Cross entropy of a student with its teacher's probabilities, a scalar.

    Args:
        scores: Of every item by the student, [M, N].
        teacher_scores: Logarithms of what the teacher thinks likely, up to a constant of each row;
            of every item, [M, N], or of those that it lists, [M, K].
        temperature: Divides both; the loss is multiplied by its square, which keeps the gradient's
            size.
        rows: What the teacher lists, [M, K]; 0 fills a short list and counts for nothing.

    Raises:
        ValueError: If the shapes do not fit.
    """
    of_what = scores.shape if rows is None else (len(scores), *rows.shape[1:])
    if teacher_scores.shape != torch.Size(of_what):
        raise ValueError(
            f"the teacher scores {tuple(teacher_scores.shape)} and the student has "
            f"{tuple(of_what)} to learn from it; give both the same queries and items"
        )
    targets = teacher_scores.detach().float() / temperature
    if rows is not None:
        targets = targets.masked_fill(rows == 0, LEFT_OUT)
    logarithms = functional.log_softmax(scores.float() / temperature, dim=1)
    if rows is not None:
        logarithms = logarithms.gather(1, rows)
    return -(targets.softmax(1) * logarithms).sum(1).mean() * temperature**2
