"""The sequence model for one history at a time: ``query_vectors`` for a request.

Axes: M events of the history, D width of a member, H heads, N item rows.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.batch import one_example
from recsys.kernels.one_query.op import EncoderOfOne, Step
from recsys.layers.attention.latest import (
    SHORTEST_WITH_BLOCKS,
    LatestEvent,
    LatestSparse,
    unit_vector,
)
from recsys.layers.attention.softmax import AttentionBlock, RelativeBias
from recsys.layers.attention.sparse import SparseBlock
from recsys.models.item_tower import NORM_FLOOR
from recsys.models.sequence.encoder import HistoryEncoder
from recsys.models.sequence.model import SequenceModel

States: TypeAlias = Sequence[tuple[Tensor, ...]]
"""State of the blocks after some events."""
Advance: TypeAlias = Callable[[Tensor, Tensor | None, States | None, int], tuple[Tensor, States]]
"""Encodes a history's rows and times [M], given the states of its first events; gives the
unit vector [D] and the states of them all."""
NUM_FIRST = 32
"""Events that name a history; of two that begin alike, the one read later is kept."""
MAX_BYTES = 64 << 20
MAX_SECONDS = 900.0
"""A state that was not used for this time is dropped at the next request."""


class Kept(NamedTuple):
    """A history that was read, and what it left."""

    rows: Tensor
    """[M]"""
    times: Tensor | None
    """[M]"""
    states: States
    vector: Tensor
    """[D]"""
    used: float

    def begins(self, rows: Tensor, times: Tensor | None) -> bool:
        """Whether a history begins with exactly the events that were read."""
        num = len(self.rows)
        if num > len(rows) or not torch.equal(self.rows, rows[:num]):
            return False
        if self.times is None or times is None:
            return self.times is times
        return torch.equal(self.times, times[:num])

    @property
    def num_bytes(self) -> int:
        states = sum(part.nbytes for state in self.states for part in state)
        return self.rows.nbytes + (0 if self.times is None else self.times.nbytes) + states


class KeptHistories:
    """Encodes single histories and keeps states of the long ones, for several threads at once."""

    def __init__(
        self,
        advance: Advance,
        shortest: int,
        max_bytes: int = MAX_BYTES,
        max_seconds: float = MAX_SECONDS,
    ) -> None:
        self._advance, self._shortest = advance, shortest
        self._max_bytes, self._max_seconds = max_bytes, max_seconds
        self._kept: OrderedDict[bytes, Kept] = OrderedDict()
        self._num_bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    @torch.no_grad()
    def query_vector(self, rows: Tensor, times: Tensor | None) -> Tensor:
        """Encode a history as a unit vector, [D].

        Args:
            rows: Of the catalogue, oldest first, at least one, [M].
            times: Unix seconds of these events, where the model reads times, [M].
        """
        if len(rows) < self._shortest:
            return self._advance(rows, times, None, 0)[0]
        name = rows[:NUM_FIRST].numpy().tobytes()
        with self._lock:
            kept = self._kept.get(name)
        if kept is not None and not kept.begins(rows, times):
            kept = None
        first = 0 if kept is None else len(kept.rows)
        if kept is not None and first == len(rows):
            vector, states = kept.vector, kept.states
        else:
            before = None if kept is None else kept.states
            vector, states = self._advance(rows, times, before, first)
        own_times = None if times is None else times.clone()
        self._keep(name, Kept(rows.clone(), own_times, states, vector, time.monotonic()))
        return vector

    def _keep(self, name: bytes, kept: Kept) -> None:
        """Keep a history as the one used last, and drop those that are old or too many."""
        with self._lock:
            before = self._kept.pop(name, None)
            self._num_bytes += kept.num_bytes - (0 if before is None else before.num_bytes)
            self._kept[name] = kept
            while self._kept:
                oldest = next(iter(self._kept.values()))
                fresh = kept.used - oldest.used <= self._max_seconds
                if fresh and self._num_bytes <= self._max_bytes:
                    return
                self._num_bytes -= self._kept.popitem(last=False)[1].num_bytes


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
        self._kept: KeptHistories | None = None
        if len(encoders) == 1 and self._members[0].sparse is not None:
            self._kept = KeptHistories(self._members[0].advance, SHORTEST_WITH_BLOCKS)
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
        if self._kept is not None:
            return self._kept.query_vector(item_rows[-self._limit :], known)
        rows = item_rows[-self._limit :]
        if len(self._members) == 1:
            return self._members[0](rows, known, types)
        return torch.cat([member(rows, known, types) for member in self._members]) / self._length

    def step(
        self, item_rows: Tensor, times: Tensor | None, types: Tensor | None, vectors: Tensor
    ) -> Step | None:
        """Compare a history with item vectors [N, D] in a compiled call; None if it cannot."""
        if len(self._members) > 1 or self._kept is not None:
            return None
        known = times[-self._limit :] if self._reads["times"] and times is not None else None
        return self._members[0].step(item_rows[-self._limit :], known, types, vectors)


class _Member:
    """One encoder; folded where it has one block, of attention over all events or over some."""

    def __init__(self, encoder: HistoryEncoder, inputs: Tensor, types: Tensor | None) -> None:
        """Fold; the item tower's inputs [N, D] and vectors of types are this member's own."""
        self._encoder, self._inputs, self._types = encoder, inputs, types
        block, is_alone = encoder.blocks[0], len(encoder.blocks) == 1
        self._block: LatestEvent | None = None
        self.sparse: LatestSparse | None = None
        if type(block) is AttentionBlock and is_alone:
            self._block = LatestEvent.of(block)
            self._bias = _LatestBias(block.bias)
        # What is added to an item's input by its place, time or type is not folded into it.
        by_item = encoder.places is None and encoder.read_at is None and types is None
        if isinstance(block, SparseBlock) and is_alone and by_item:
            self.sparse = LatestSparse(block, inputs)
        places, norm = encoder.places, encoder.output_norm
        self._places = None if places is None else places.weight.detach()
        self._norm = (norm.weight.detach(), norm.bias.detach(), norm.eps)
        self._compiled: EncoderOfOne | None = None
        if self._block is not None and encoder.read_at is None and encoder.query_at is None:
            self._compiled = self._block.encoder(
                inputs, self._places, self._norm, NORM_FLOOR, from_end=False
            )

    def __call__(self, rows: Tensor, times: Tensor | None, types: Tensor | None) -> Tensor:
        """Encode the events of these item rows [M] as a unit vector, [D]."""
        if self.sparse is not None:
            return self.advance(rows, times, None, 0)[0]
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
        if self._places is not None:
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

    def advance(
        self, rows: Tensor, times: Tensor | None, states: States | None, first: int
    ) -> tuple[Tensor, States]:
        """Encode by folded sparse attention, as an ``Advance``; its state are blocks' means."""
        assert self.sparse is not None
        means = self.sparse.means(rows, None if states is None else states[0][0])
        return self._expected(self.sparse(rows, means), times), [(means,)]

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
