"""The next step's batch, made while a GPU computes this one.

What a batch needs of other ranks (labels, numbers of rows) has sizes that only the device knows, so
the host waits for them. On a stream of its own that wait is short; after the step's work it would
last as long as the step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class AheadLoss(Generic[T]):
    """The loss of each step, in two parts: its batch, and the loss of a batch."""

    def __init__(
        self, prepare: Callable[[int], T], loss_of: Callable[[T], Tensor], device: torch.device
    ) -> None:
        """Pair the two parts.

        Args:
            prepare: The batch of a step with all that the device reads for it; reads no weight
                that trains.
        """
        self._prepare, self._loss_of, self._device = prepare, loss_of, device
        self._side: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._made: tuple[int, T] | None = None
        self._kept: list[tuple[T, Any]] = []
        """Batches with an event after their step: the side stream may not reuse their memory."""

    def __call__(self, step: int) -> Tensor:
        if self._made is None or self._made[0] != step:
            self._make(step)
        assert self._made is not None
        torch.cuda.current_stream(self._device).wait_stream(self._side)
        return self._loss_of(self._made[1])

    def ahead(self, step: int) -> None:
        """Make the batch of the step after the one whose work was just handed to the device."""
        if self._made is not None:
            done: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(torch.cuda.current_stream(self._device))
            self._kept.append((self._made[1], done))
        while len(self._kept) > 1:
            _, done = self._kept.pop(0)
            done.synchronize()
        self._make(step)

    def _make(self, step: int) -> None:
        with torch.cuda.stream(self._side):
            self._made = step, self._prepare(step)
