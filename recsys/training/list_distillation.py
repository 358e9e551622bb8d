"""A small retriever learns from the lists of a large one: soft targets over the whole catalogue.

Soft targets: Hinton et al. 2015, arXiv:1503.02531; over ranked lists: Tang and Wang 2018,
arXiv:1809.07428. A teacher speaks after every event of a history, also after the last, which no
label follows; labels keep their share of the loss (``DistillationConfig.soft_share``).

Axes: B queries, M queries or events that the teacher speaks after, K items of its list, N item
rows, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from recsys.data.batch import Jagged, JaggedBatch, latest
from recsys.models.item_tower import CatalogueModel
from recsys.models.sequence.model import SequenceModel, seen_before
from recsys.models.two_tower import TwoTower

LEFT_OUT = -1e4
"""Score of what no list may hold: its probability is 0, and 0 times its logarithm is no NaN."""


def _item_inputs(model: CatalogueModel) -> Tensor:
    """Encode the catalogue, with gradients while the model trains, [N, D]."""
    if not model.training:
        return model.all_item_inputs()
    device = next(model.parameters()).device
    return model.item_inputs(torch.arange(model.num_item_rows, device=device))


def _events(model: SequenceModel, batch: JaggedBatch) -> tuple[Jagged, Tensor | None]:
    limit = model.config.max_length
    times = latest(batch["history.times"], limit).values if "history.times" in batch else None
    return latest(batch["history"], limit), times


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
    history, times = _events(model, batch)
    inputs = _item_inputs(model)
    encoded = model.encoder(functional.embedding(history.values, inputs), history, times)
    items = model.normalized(inputs.float())
    return _scores(encoded, items, seen_before(history), model.config.temperature)


class _Encoded(NamedTuple):
    queries: Tensor
    """Unit vectors, [B, D]."""
    items: Tensor
    """Unit vectors of the catalogue, [N, D]."""
    history: Jagged


def _encoded(model: SequenceModel | TwoTower, queries: JaggedBatch) -> _Encoded:
    inputs = _item_inputs(model)
    items = model.normalized(inputs.float())
    if isinstance(model, TwoTower):
        history = latest(queries["history"], model.config.max_history)
        read = functional.embedding(history.values, inputs)
        return _Encoded(model.query_tower(queries, history, read), items, history)
    history, times = _events(model, queries)
    read = functional.embedding(history.values, inputs)
    return _Encoded(model.encoder.only_last(read, history, times), items, history)


def scores_of_queries(model: SequenceModel | TwoTower, queries: JaggedBatch) -> Tensor:
    """Score every item for each query, [B, N]; what was seen is left out.

    Args:
        queries: What the model reads; for a sequence model no history may be empty.
    """
    return _scores(*_encoded(model, queries), model.config.temperature)


class AuxiliaryHead(nn.Module):
    """A second opinion of a retriever: its query vectors, turned by a layer of its own.

    It learns labels as they are, so that the model itself may learn softened ones
    (self-auxiliary distillation, Zhang et al., RecSys 2024, doi:10.1145/3640457.3688041): what a
    user took is trusted, what a user did not take may only not have been seen, and gets what the
    head believes of it. It is thrown away after training.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.turn = nn.Linear(dim, dim, bias=False)
        nn.init.zeros_(self.turn.weight)

    def forward(self, queries: Tensor) -> Tensor:
        """Turn unit vectors into unit vectors, [B, D]; the same ones at first."""
        turned = queries + self.turn(queries)
        return functional.normalize(turned, dim=1)


def self_auxiliary_list_loss(
    model: SequenceModel | TwoTower,
    head: AuxiliaryHead,
    queries: JaggedBatch,
    labels: Tensor,
    trust: float,
) -> Tensor:
    """Teach the head the labels, and the model labels softened by the head, a scalar.

    Args:
        queries: What was known before each label; for a sequence model no history may be empty.
        labels: Item rows, [B]; those that the history has count for nothing.
        trust: Share of the model's target that the head says, in [0, 1]; no gradient reaches it
            from there.
    """
    if not 0 <= trust <= 1:
        raise ValueError(f"trust must be in [0, 1], got {trust}")
    encoded, temperature = _encoded(model, queries), model.config.temperature
    scores = _scores(*encoded, temperature)  # [B, N]
    believed = _scores(head(encoded.queries), encoded.items, encoded.history, temperature)
    new = scores.detach().gather(1, labels[:, None])[:, 0] > LEFT_OUT
    scores, believed, labels = scores[new], believed[new], labels[new]
    of_head = functional.cross_entropy(believed, labels)
    hard = functional.cross_entropy(scores, labels)
    return of_head + (1 - trust) * hard + trust * soft_list_loss(scores, believed, 1.0)


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
