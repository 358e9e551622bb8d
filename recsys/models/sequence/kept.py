"""States of long histories, so that a further event costs one step in place of a whole encoding.

A state belongs to the events it has read, not to a user: it is used where a history begins with
exactly these events at these times, and recomputed from scratch in every other case, such as events
that were removed, came late, or slid out of the longest history. Another model has other states.

Axes: M events of a history, D width.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

States: TypeAlias = Sequence[tuple[Tensor, ...]]
"""State of the blocks after some events."""
Advance: TypeAlias = Callable[[Tensor, Tensor | None, States | None, int], tuple[Tensor, States]]
"""Encodes a history's rows and times [M], given the states of its first so many events; gives the
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
        kept = self._found(name)
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

    def _found(self, name: bytes) -> Kept | None:
        with self._lock:
            return self._kept.get(name)

    def _keep(self, name: bytes, kept: Kept) -> None:
        """Keep a history as the one used last, and drop what is old or too much."""
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
