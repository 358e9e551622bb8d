"""A table in host memory whose hot rows live on the device; what fits is decided by the ids.

For tables beyond the memory of a GPU. Host memory holds all rows, the device a cache of the rows
that occurred last. Before a step its missing rows are copied in and as many others written back;
``prefetch`` does this for the next step while the current one computes. A row in use is
never evicted, so every number equals that of a table wholly on the device.

Rows move by row-wise Adagrad (the mean of squares, one word a row), which travels with its row.

Axes: M ids, U different rows, N rows of the table, C rows on the device, D width.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor


class Fetched(NamedTuple):
    """Where the rows of some ids lie in the cache."""

    slots: Tensor
    """Place of each different row, [U]; ascending by row."""
    places: Tensor
    """Which of them each id is, [M]."""
    num_missing: int
    """Rows that were copied in for it."""


class HostRows:
    """Rows and their optimizer state in host memory, the latest used on the device.

    Args:
        num_rows: N; row 0 is the unknown value.
        embedding_dim: D.
        cached_rows: C, at least twice the different rows of a step.
        device: Of the cache; on CUDA host memory is pinned.
    """

    def __init__(
        self, num_rows: int, embedding_dim: int, *, cached_rows: int, device: torch.device
    ) -> None:
        if not 0 < cached_rows <= num_rows:
            raise ValueError(
                f"cached_rows must be in [1, {num_rows}], the rows of the table, got {cached_rows}"
            )
        self.dim, self.device = embedding_dim, device
        on_cuda = device.type == "cuda"
        width = embedding_dim + 1
        self.host = torch.zeros(num_rows, width, pin_memory=on_cuda)  # [N, D + 1], state last
        self.cache = torch.zeros(cached_rows, width, device=device)  # [C, D + 1]
        self.slot_of = torch.full((num_rows,), -1, dtype=torch.int32, device=device)
        self.row_in = torch.full((cached_rows,), -1, dtype=torch.int64, device=device)
        self.used_at = torch.full((cached_rows,), -1, dtype=torch.int32, device=device)
        self.step = 0
        self._stream = torch.cuda.Stream(device) if on_cuda else None
        self._ahead: tuple[threading.Thread, Tensor] | None = None
        self._found: Fetched | BaseException | None = None

    def fetch(self, ids: Tensor) -> Fetched:
        """Make the rows of ``ids`` [M] present; they stay until the next step's are there.

        Raises:
            ValueError: If the cache is too small for two steps in a row.
        """
        if self._ahead is not None and self._ahead[1] is ids:
            thread, _ = self._ahead
            thread.join()
            self._ahead = None
            if isinstance(self._found, BaseException):
                raise self._found
            assert self._found is not None
            if self._stream is not None:
                current = torch.cuda.current_stream(self.device)
                current.wait_stream(self._stream)
                self._found.slots.record_stream(current)
                self._found.places.record_stream(current)
            return self._found
        assert self._ahead is None, "the ids that were prefetched come next"
        return self._bring(ids)

    def prefetch(self, ids: Tensor) -> None:
        """Begin to bring in the next step's rows, beside the work of the current one."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self.device))

        def bring() -> None:
            try:
                on_side = torch.cuda.stream(self._stream) if self._stream else nullcontext()
                with on_side:
                    self._found = self._bring(ids)
            except BaseException as error:  # the caller of fetch gets it
                self._found = error

        thread = threading.Thread(target=bring)
        self._ahead = (thread, ids)
        thread.start()

    @torch.no_grad()
    def _bring(self, ids: Tensor) -> Fetched:
        self.step += 1
        rows, places = torch.unique(ids, return_inverse=True)
        slots = self.slot_of[rows]
        is_missing = slots < 0
        missing = rows[is_missing]
        self.used_at[slots[~is_missing].long()] = self.step
        if len(missing):
            taken = self._emptied(len(missing))
            self.cache[taken] = self.read(missing)
            self.row_in[taken] = missing
            self.used_at[taken] = self.step
            self.slot_of[missing] = taken.int()
            slots[is_missing] = taken.int()
        return Fetched(slots.long(), places, len(missing))

    def _emptied(self, number: int) -> Tensor:
        """Write back the rows that were used longest ago and give their slots."""
        if number > len(self.used_at):
            raise ValueError(self._too_small(number))
        last, oldest = self.used_at.topk(number, largest=False)
        if int(last.max()) >= self.step - 1:
            raise ValueError(self._too_small(number))
        old = self.row_in[oldest]
        held = old >= 0
        if bool(held.any()):
            self.write(old[held], self.cache[oldest[held]])
            self.slot_of[old[held]] = -1
        return oldest

    def _too_small(self, number: int) -> str:
        return (
            f"{number} rows to bring in, and not as many of the {len(self.used_at)} on the device "
            "are free of this step and the one before; give the cache more rows, or take smaller "
            "batches"
        )

    def read(self, rows: Tensor) -> Tensor:
        """Copy rows from host memory to the device, [U, D + 1]."""
        found = self.host[rows.cpu()]
        if self._stream is not None:
            found = found.pin_memory()
        return found.to(self.device, non_blocking=True)

    def write(self, rows: Tensor, values: Tensor) -> None:
        """Copy rows from the device back."""
        self.host[rows.cpu()] = values.cpu()

    def rows(self, fetched: Fetched) -> Tensor:
        """Take the embedding of each id, [M, D]."""
        return self.cache[fetched.slots[fetched.places], : self.dim]

    @torch.no_grad()
    def move(
        self, fetched: Fetched, gradient: Tensor, learning_rate: float, eps: float = 1e-8
    ) -> None:
        """Move the rows of a step against the gradient of each id's embedding, [M, D]."""
        summed = gradient.new_zeros(len(fetched.slots), self.dim)
        summed.index_add_(0, fetched.places, gradient)  # [U, D]
        own = self.cache[fetched.slots]
        squares = own[:, self.dim] + summed.square().mean(1)  # [U]
        own[:, : self.dim] -= learning_rate * summed / (squares.sqrt() + eps)[:, None]
        own[:, self.dim] = squares
        self.cache[fetched.slots] = own

    def flush(self) -> Tensor:
        """Write every row on the device back and give the whole table, [N, D]."""
        assert self._ahead is None, "rows are still coming in"
        held = self.row_in >= 0
        if bool(held.any()):
            self.write(self.row_in[held], self.cache[held])
        return self.host[:, : self.dim]
