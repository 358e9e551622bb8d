"""Launch compiled Triton kernels without the Python that Triton runs at every call.

A lookup and its update are a handful of short kernels; Triton's own call takes about 15 us of the
host for each, a launch by address about 5.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache, reduce
from operator import or_
from typing import Any, NamedTuple

import torch
from torch import Tensor

_compiled: dict[tuple[object, ...], Any] = {}


@cache
def interpreting() -> bool:
    """Whether Triton's interpreter runs the kernels, on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@lru_cache(maxsize=16)
def num_multiprocessors(device: torch.device) -> int:
    """Count the multiprocessors; 1 where the interpreter runs."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def launch(
    kernel: Any,
    grid: int,
    tensors: Sequence[Tensor | None],
    numbers: Sequence[int | float | None],
    constants: Mapping[str, object],
    *,
    num_warps: int = 4,
    max_registers: int | None = None,
) -> None:
    """Launch ``grid`` programs on the current stream of the first tensor's device.

    The kernel takes tensors, numbers and constants in this order, names the types of its whole
    numbers and does not specialize on them: then what is compiled depends on the constants and on
    type and alignment of the tensors alone.
    """
    if interpreting():
        kernel[(grid,)](*tensors, *numbers, **constants)
        return
    index = tensors[0].device.index  # type: ignore[union-attr]
    if index != torch.cuda.current_device():
        with torch.cuda.device(index):
            launch(
                kernel, grid, tensors, numbers, constants,
                num_warps=num_warps, max_registers=max_registers,
            )  # fmt: skip
        return
    addresses = [None if one is None else one.data_ptr() for one in tensors]
    misaligned = None
    if reduce(or_, filter(None, addresses)) % 16:
        misaligned = tuple(one is not None and one % 16 != 0 for one in addresses)
    types = [None if one is None else one.dtype for one in tensors]
    values = constants.values()
    options = (id(kernel), index, num_warps, max_registers, numbers[-1] is None)
    key = (*options, *types, *values, misaligned)
    found = _compiled.get(key)
    if found is None:
        _compiled[key] = kernel[(grid,)](
            *tensors, *numbers, **constants, num_warps=num_warps, maxnreg=max_registers
        )
    else:
        found[(grid, 1, 1)](*addresses, *numbers, *values)


class Streams(NamedTuple):
    """A stream, a second one beside it, and the events at which they wait for each other.

    Both meet again in ``join``, so that no tensor is freed while the other stream uses it.
    """

    own: torch.cuda.Stream
    beside: torch.cuda.Stream
    begin: torch.cuda.Event
    end: torch.cuda.Event

    def resume(self) -> None:
        """Launch on the first stream again."""
        torch.cuda.set_stream(self.own)

    def switch(self) -> None:
        """Launch on the second stream."""
        torch.cuda.set_stream(self.beside)

    def join(self) -> None:
        """Let the first stream wait for the second."""
        self.end.record(self.beside)
        self.own.wait_event(self.end)


@lru_cache(maxsize=64)
def _streams(own: torch.cuda.Stream) -> Streams:
    # Before the other's blocks, which would otherwise keep this one waiting for their end.
    beside = torch.cuda.Stream(own.device, priority=-1)  # type: ignore[no-untyped-call]
    return Streams(own, beside, torch.cuda.Event(), torch.cuda.Event())  # type: ignore[no-untyped-call]


def part_streams(device: torch.device) -> Streams | None:
    """Let a second stream go on from where the current one is; None where there are no streams."""
    if device.type != "cuda":
        return None
    streams = _streams(torch.cuda.current_stream(device))
    streams.begin.record(streams.own)
    streams.beside.wait_event(streams.begin)
    return streams
