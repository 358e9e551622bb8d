"""The sequence model for one history at a time: ``query_vectors`` and ``score`` for a request.

Axes: M events of the history, D width of a member, H heads, N item rows.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from recsys.data.batch import one_example
from recsys.kernels.hstu_attention.reference import time_buckets
from recsys.layers.attention.latest import LatestEvent, unit_vector
from recsys.layers.attention.softmax import AttentionBlock, RelativeBias
from recsys.models.item_tower import NORM_FLOOR
from recsys.models.sequence.encoder import Encoder
from recsys.models.sequence.kept import KeptHistories
from recsys.models.sequence.model import SequenceModel


class OneHistory:
    """Scores the catalogue for single histories; the model must not change afterwards."""

    def __init__(self, model: SequenceModel) -> None:
        config = model.config
        self._inputs = model.all_item_inputs()
        self._vectors = model.all_item_vectors
        self._limit = config.max_length
        self._reads_times = config.time_buckets > 0 or config.calendar_days > 0
        members = [cast("Encoder", member) for member in model.encoder.members]
        self._kept: KeptHistories | None = None
        if len(members) == 1 and KeptHistories.suits(members[0]):
            self._kept = KeptHistories(members[0], self._inputs)
        self._members = [_Member(member) for member in members]
        self._length = math.sqrt(len(members))

    @cached_property
    def _columns(self) -> Tensor:
        """All item vectors, [D of all members, N]."""
        # For one query a product with columns takes a third to a half of the time of one with rows.
        with torch.no_grad():
            return self._vectors().T.contiguous()

    def scores(self, item_rows: Tensor, times: Tensor | None) -> Tensor:
        """Score every item by cosine, [N].

        Args:
            item_rows: Of the catalogue, oldest first, at least one.
            times: Unix seconds of these events, where there are times.
        """
        return self.query_vector(item_rows, times) @ self._columns

    def query_vector(self, item_rows: Tensor, times: Tensor | None) -> Tensor:
        """Encode a history as a unit vector; arguments as of ``scores``."""
        known = times[-self._limit :] if self._reads_times and times is not None else None
        if self._kept is not None:
            return self._kept.query_vector(item_rows[-self._limit :], known)
        inputs = self._inputs.index_select(0, item_rows[-self._limit :])
        if len(self._members) == 1:
            return self._members[0](inputs, known)
        shares = inputs.chunk(len(self._members), dim=1)
        vectors = [member(own, known) for member, own in zip(self._members, shares, strict=True)]
        return torch.cat(vectors) / self._length


class _Member:
    """One encoder; folded where it has one block, of attention."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        block = encoder.blocks[0]
        self._block: LatestEvent | None = None
        if isinstance(block, AttentionBlock) and len(encoder.blocks) == 1:
            self._block = LatestEvent.of(block)
            self._bias = _LatestBias(block.bias)
        places, norm = encoder.places, encoder.output_norm
        self._places = None if places is None else places.weight.detach()
        self._norm = (norm.weight.detach(), norm.bias.detach(), norm.eps)

    def __call__(self, inputs: Tensor, times: Tensor | None) -> Tensor:
        """Encode the events [M, D] as a unit vector, [D]."""
        encoder = self._encoder
        if self._block is None:
            return encoder.only_last(inputs, one_example(inputs), times)[0]
        if self._places is not None:
            inputs = inputs + self._places[: inputs.shape[0]]
        if encoder.read_at is not None and times is not None:
            inputs = inputs + encoder.read_at(times)
        state = self._block(inputs, self._bias(inputs.shape[0], times))
        if encoder.query_at is not None and times is not None:
            state = state + encoder.query_at(times[-1:])[0]
        return unit_vector(torch.layer_norm(state, state.shape, *self._norm), NORM_FLOOR)


class _LatestBias:
    """``RelativeBias.of_last`` of one history."""

    def __init__(self, bias: RelativeBias) -> None:
        self._by_place: Tensor | None = None
        if bias.positions is not None:
            # The latest place last.
            self._by_place = bias.positions.detach()[:, bias.buckets.long()].flip(1)
        self._times = None if bias.times is None else bias.times.detach()

    def __call__(self, length: int, times: Tensor | None) -> Tensor | None:
        """Add up the biases of the last place with every other, [H, M]."""
        bias = None if self._by_place is None else self._by_place[:, -length:]
        if self._times is None or times is None:
            return bias
        bucket = time_buckets(times[-1] - times, self._times.shape[1])
        by_time = self._times[:, bucket]
        return by_time if bias is None else bias + by_time
