"""The sequence model for one history at a time: ``query_vectors`` for a request.

Axes: M events of the history, D width of a member, H heads, N item rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.batch import one_example
from recsys.kernels.one_query.op import EncoderOfOne, Step
from recsys.layers.attention.latest import LatestEvent, unit_vector
from recsys.layers.attention.softmax import AttentionBlock, RelativeBias
from recsys.models.item_tower import NORM_FLOOR
from recsys.models.sequence.encoder import HistoryEncoder
from recsys.models.sequence.model import SequenceModel


class OneHistory:
    """Encodes single histories; the model must not change afterwards."""

    def __init__(self, model: SequenceModel) -> None:
        config = model.config
        self._inputs = model.all_item_inputs()
        self._limit = config.max_length
        self._reads = model.reads
        encoders = [cast("HistoryEncoder", member) for member in model.encoder.members]
        shares = self._inputs.chunk(len(encoders), dim=1)
        types: Sequence[Tensor | None] = [None] * len(encoders)
        self._num_types = model.inputs.num_event_types
        if model.event_types is not None:
            types = model.event_types.weight.detach().chunk(len(encoders), dim=1)
        self._members = [_Member(*one) for one in zip(encoders, shares, types, strict=True)]
        self._length = math.sqrt(len(encoders))

    def query_vector(
        self, item_rows: Tensor, times: Tensor | None, types: Tensor | None = None
    ) -> Tensor:
        """Encode a history as a unit vector; its products with the items' are their scores.

        Args:
            item_rows: Of the catalogue, oldest first, at least one.
            times: Unix seconds of these events, where there are times.
            types: Rows of the types of these events, where there are types.
        """
        known = times[-self._limit :] if self._reads["times"] and times is not None else None
        if types is not None:
            types = types[-self._limit :]
            types = torch.where(types < self._num_types, types, 0)
        rows = item_rows[-self._limit :]
        if len(self._members) == 1:
            return self._members[0](rows, known, types)
        return torch.cat([member(rows, known, types) for member in self._members]) / self._length

    def step(
        self, item_rows: Tensor, times: Tensor | None, types: Tensor | None, vectors: Tensor
    ) -> Step | None:
        """Compare a history with item vectors [N, D] in a compiled call; None if it cannot."""
        if len(self._members) > 1:
            return None
        known = times[-self._limit :] if self._reads["times"] and times is not None else None
        return self._members[0].step(item_rows[-self._limit :], known, types, vectors)


class _Member:
    """One encoder; folded where it has one block, of attention."""

    def __init__(self, encoder: HistoryEncoder, inputs: Tensor, types: Tensor | None) -> None:
        """Fold; the item tower's inputs [N, D] and vectors of types are this member's own."""
        self._encoder, self._inputs, self._types = encoder, inputs, types
        block, is_alone = encoder.blocks[0], len(encoder.blocks) == 1
        self._block: LatestEvent | None = None
        if type(block) is AttentionBlock and is_alone:
            self._block = LatestEvent.of(block)
            self._bias = _LatestBias(block.bias)
        self._places, norm = encoder.places.weight.detach(), encoder.output_norm
        self._norm = (norm.weight.detach(), norm.bias.detach(), norm.eps)
        self._compiled: EncoderOfOne | None = None
        if self._block is not None and encoder.read_at is None and encoder.query_at is None:
            self._compiled = self._block.encoder(
                inputs, self._places, self._norm, NORM_FLOOR, from_end=False
            )

    def __call__(self, rows: Tensor, times: Tensor | None, types: Tensor | None) -> Tensor:
        """Encode the events of these item rows [M] as a unit vector, [D]."""
        if self._compiled is not None and (self._types is None or types is None):
            bias = self._bias(rows.shape[0], times)
            vector = self._compiled.encode(rows, bias)
            if vector is not None:
                return vector
        encoder, inputs = self._encoder, self._inputs.index_select(0, rows)
        if self._types is not None and types is not None:
            inputs = inputs + self._types.index_select(0, types)
        if self._block is None:
            return encoder.only_last(inputs, one_example(inputs), times)[0]
        inputs = inputs + self._places[: inputs.shape[0]]
        if encoder.read_at is not None and times is not None:
            inputs = inputs + encoder.read_at(times)
        state = self._block(inputs, self._bias(inputs.shape[0], times))
        return self._expected(state, times)

    def step(
        self, rows: Tensor, times: Tensor | None, types: Tensor | None, vectors: Tensor
    ) -> Step | None:
        """Compare the events of these item rows [M] with item vectors; see `OneHistory.step`."""
        if self._compiled is None or (self._types is not None and types is not None):
            return None
        bias = self._bias(rows.shape[0], times)
        return self._compiled.step(rows, bias, (), vectors, all_have_vectors=True)

    def _expected(self, state: Tensor, times: Tensor | None) -> Tensor:
        """Do what ``Encoder`` does after its blocks, [D] -> [D]."""
        if self._encoder.query_at is not None and times is not None:
            state = state + self._encoder.query_at(times[-1:])[0]
        return unit_vector(torch.layer_norm(state, state.shape, *self._norm), NORM_FLOOR)


class _LatestBias:
    """``RelativeBias.of_last`` of one history."""

    def __init__(self, bias: RelativeBias) -> None:
        self._by_place: NDArray[np.float32] | None = None
        if bias.positions is not None:
            # The latest place last.
            by_place = bias.positions.detach()[:, bias.buckets.long()].flip(1)
            self._by_place = by_place.float().numpy()
        self._times = None if bias.times is None else bias.times.detach().float().numpy()

    def __call__(self, length: int, times: Tensor | None) -> Tensor | None:
        """Add up the biases of the last place with every other, [H, M]."""
        bias = None if self._by_place is None else self._by_place[:, -length:]
        if self._times is not None and times is not None:
            # As time_buckets does: in numpy this takes a fifth of the time.
            known = times.numpy()
            exponent = np.frexp(np.maximum(known[-1] - known, 0) + 1.0)[1] - 1
            by_time = self._times.take(np.minimum(exponent, self._times.shape[1] - 1), axis=1)
            bias = by_time if bias is None else bias + by_time
        return None if bias is None else torch.from_numpy(np.ascontiguousarray(bias))
