"""A generative model learns semantic IDs from what a sequence model expects: soft targets by code.

A label says which item came next, a trained sequence model how likely every item was. Mixed, the
two are a distribution over the catalogue, and so over the codes of each level after a prefix. The
prefix that a step decodes after is drawn from that distribution too, so the codes' losses add up,
on average, to the cross entropy of whole IDs: soft targets (Hinton et al. 2015, arXiv:1503.02531)
without a sum over IDs. What generates afterwards are the codes alone.

Axes: B sequences, M events of a batch, P positions, N item rows, L levels, K codes of a level, C
most items with a first code.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from recsys.data.batch import JaggedBatch
from recsys.models.generative.config import TeachingConfig
from recsys.models.generative.loss import Positions, TaughtCodes
from recsys.models.sequence.model import SequenceModel, seen_before

LEFT_OUT = -1e4
"""Score of an item that no list may hold. Finite, because 0 times the logarithm of 0 gives NaN."""


class CodeTeacher:
    """A sequence model that says which codes come next."""

    def __init__(
        self,
        model: SequenceModel,
        codes: Tensor,
        level_sizes: Sequence[int],
        config: TeachingConfig,
    ) -> None:
        """Take a trained model and the semantic IDs [N, L] of its items, -1 where one has none."""
        self._model, self._config = model.eval(), config
        self._codes = codes.to(next(model.parameters()).device).long()
        self._sizes = tuple(level_sizes)
        self._has_id = self._codes[:, 0] >= 0
        self._behind = items_by_code(self._codes[:, 0], self._sizes[0])  # [K, C]
        # As a product: adding up so many numbers into so few places waits for each other on a GPU.
        places = self._codes[:, :1].clamp(min=0)
        self._first = torch.zeros(len(codes), self._sizes[0], device=places.device)
        self._first.scatter_(1, places, self._has_id[:, None].float())  # [N, K]

    @torch.no_grad()
    def __call__(self, batch: JaggedBatch, positions: Positions) -> TaughtCodes:
        """Return the target of each position and the codes before it.

        Args:
            batch: ``history`` and, where there are times, ``history.times``: the events that the
                positions read, none longer than the model reads.
        """
        target = self._expected(batch, positions)  # [P, N]
        # Positions without a target weigh nothing; they need a draw like the others.
        empty = target.sum(1, keepdim=True) <= 0
        drawn = torch.multinomial(target + empty * self._has_id, 1)[:, 0]
        forced = self._codes[drawn]  # [P, L]
        levels = [shares(target @ self._first)]
        members = self._behind[forced[:, 0].clamp(min=0)]  # [P, C]
        share, codes = target.gather(1, members), self._codes[members]  # [P, C], [P, C, L]
        for level in range(1, len(self._sizes)):
            if level > 1:
                share = share * (codes[..., level - 1] == forced[:, level - 1, None])
            sums = share.new_zeros(len(share), self._sizes[level])
            levels.append(shares(sums.scatter_add(1, codes[..., level].clamp(min=0), share)))
        return TaughtCodes(forced, tuple(levels))

    def _expected(self, batch: JaggedBatch, positions: Positions) -> Tensor:
        """Mix the label with what the model expects, among items with an ID, [P, N]."""
        history, share = batch["history"], self._config.share
        scores = scores_after_events(self._model, batch)  # [M, N]
        if len(scores) != len(history.values):
            raise ValueError(
                f"the teacher reads {self._model.config.max_length} events and a sequence of the "
                "batch has more; give it a max_length above the generative model's"
            )
        expected = torch.softmax(scores.masked_fill(~self._has_id, LEFT_OUT), dim=1)
        before = (history.offsets[positions.sequences] + positions.places - 1).clamp(min=0)
        share_of = torch.where(positions.places > 0, share, 0.0)[:, None]  # [P, 1]
        target = expected[before] * share_of
        target = target.scatter_add(1, positions.labels[:, None], 1 - share_of)
        return target * self._has_id


@torch.no_grad()
def scores_after_events(model: SequenceModel, batch: JaggedBatch) -> Tensor:
    """Score every item after each event of each history, [M, N]; items seen get ``LEFT_OUT``.

    Args:
        batch: As the model reads it.
    """
    history, times, types = model.read(batch, model.config.max_length)
    inputs = model.all_item_inputs()
    read = model.with_types(functional.embedding(history.values, inputs), types)
    encoded = model.encoder(read, history, times)
    items = model.normalized(inputs.float())
    seen = seen_before(history)
    # Full precision: bfloat16 cannot separate the teacher's first places.
    with torch.autocast(encoded.device.type, enabled=False):
        scores: Tensor = encoded.float() @ items.float().T / model.config.temperature
    out = torch.zeros_like(scores, dtype=torch.bool)
    out[:, 0] = True
    out[seen.segments(), seen.values] = True
    return scores.masked_fill(out, LEFT_OUT)


def shares(sums: Tensor) -> Tensor:
    """Normalise rows to sum to one, except rows of zeros."""
    return sums / sums.sum(1, keepdim=True).clamp(min=1e-20)


def items_by_code(codes: Tensor, num_codes: int) -> Tensor:
    """List the item rows that have each code, [N] -> [K, C]; 0, an item without any, fills up."""
    order = codes.argsort(stable=True)
    order = order[codes[order] >= 0]
    counts = torch.bincount(codes[order], minlength=num_codes)
    place = torch.arange(int(counts.max()), device=codes.device)
    at = (counts.cumsum(0) - counts)[:, None] + place
    return torch.where(place < counts[:, None], order[at.clamp(max=len(order) - 1)], 0)


def with_dropped_events(batch: JaggedBatch, most: float) -> JaggedBatch:
    """Drop events of each sequence at random, a share of its own below ``most``; on the CPU."""
    history = next(iter(batch.features.values()))
    of_sequence = history.segments()
    share = torch.rand(history.batch_size)[of_sequence] * most
    kept = torch.rand(len(of_sequence)) >= share
    return JaggedBatch({name: each.where(kept) for name, each in batch.features.items()})
