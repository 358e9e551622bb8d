"""Launch compiled Triton kernels without the Python that Triton runs at every call.

A lookup and its update are a dozen short kernels: what a launch costs the host decides how long a
small one takes.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache, reduce
from operator import or_
from typing import Any, NamedTuple

import torch
from torch import Tensor

from recsys.kernels.choice import interpreting

CODES = {"i32": "i", "i64": "q", "fp32": "f"}
MOST_SCRATCH = 2
"""Pointers that Triton passes after a kernel's own arguments."""
_BUFFER, _BUFFER_SIZE = 1, 2


@cache
def driver() -> ctypes.PyDLL:
    """Open the driver's library; its calls keep Python's lock, since buffers have none."""
    return ctypes.PyDLL("libcuda.so.1")


class Packed:
    """A compiled kernel, and the buffer that its arguments are packed into."""

    def __init__(
        self, function: int, form: str, num_bytes: int, threads: int, shared_bytes: int = 0
    ) -> None:
        self._pack = struct.Struct(form).pack_into
        self._buffer = ctypes.create_string_buffer(num_bytes)
        self._size = ctypes.c_size_t(num_bytes)
        self._extra = (ctypes.c_void_p * 5)(
            _BUFFER, ctypes.addressof(self._buffer), _BUFFER_SIZE, ctypes.addressof(self._size), 0
        )
        self._function = ctypes.c_void_p(function)
        self._block = (threads, 1, 1, shared_bytes)
        self._call = driver().cuLaunchKernel

    def launch(self, grid: int, stream: int, values: Sequence[int | float]) -> int:
        """Launch ``grid`` blocks; return the driver's error, 0 if there is none."""
        self._pack(self._buffer, 0, *values)
        return int(
            self._call(
                self._function, grid, 1, 1, *self._block, ctypes.c_void_p(stream), None, self._extra
            )
        )


def packing(function: int, types: Sequence[str]) -> tuple[str, int] | None:
    """Find form and length of a kernel's arguments of Triton's types, ``*fp32`` or ``i64``.

    None where a type is unknown, or the driver finds the arguments in other places.
    """
    form = "".join("Q" if one.startswith("*") else CODES.get(one, " ") for one in types)
    found = _parameters(function)
    scratch = len(found) - len(form)
    if " " in form or not 0 <= scratch <= MOST_SCRATCH:
        return None
    whole = form + "Q" * scratch
    ends = [struct.calcsize(whole[: place + 1]) for place in range(len(whole))]
    sizes = [struct.calcsize(one) for one in whole]
    expected = [(end - size, size) for end, size in zip(ends, sizes, strict=True)]
    return (form, ends[-1]) if found == expected else None


def _parameters(function: int) -> list[tuple[int, int]]:
    """Ask the driver for offset and size of each parameter; none where it cannot tell."""
    ask = getattr(driver(), "cuFuncGetParamInfo", None)
    if ask is None:
        return []
    found: list[tuple[int, int]] = []
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    places = (ctypes.byref(offset), ctypes.byref(size))
    while not ask(ctypes.c_void_p(function), ctypes.c_size_t(len(found)), *places):
        found.append((offset.value, size.value))
    return found


@lru_cache(maxsize=16)
def num_multiprocessors(device: torch.device) -> int:
    """Count the multiprocessors; 1 where the interpreter runs."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


class Arguments:
    """Arguments of one kernel, or of several that take the same."""

    __slots__ = ("index", "kind", "numbers", "tensors", "values")

    def __init__(
        self, tensors: Sequence[Tensor | None], numbers: Sequence[int | float | None]
    ) -> None:
        self.tensors, self.numbers = tensors, numbers
        if interpreting():
            return
        given = [one for one in tensors if one is not None]
        addresses = [one.data_ptr() for one in given]
        self.index = given[0].device.index
        self.values = (*addresses, *[one for one in numbers if one is not None])
        misaligned = None
        if reduce(or_, addresses) % 16:
            misaligned = tuple(one % 16 != 0 for one in addresses)
        types = [None if one is None else one.dtype for one in tensors]
        self.kind = (self.index, misaligned, numbers[-1] is None, *types)


class Kernel:
    """A Triton kernel with its constants, ready to be launched again and again.

    It takes tensors, numbers and constants in this order, names the types of its whole numbers and
    does not specialize on them: then the compiled code depends on the constants and on type and
    alignment of the tensors alone. Of the numbers, only the last may be None.
    """

    __slots__ = ("_compiled", "_constants", "_jit", "_options")

    def __init__(
        self,
        jit: Any,
        constants: Mapping[str, object],
        *,
        num_warps: int = 4,
        max_registers: int | None = None,
    ) -> None:
        self._jit, self._constants = jit, constants
        self._options = {"num_warps": num_warps, "maxnreg": max_registers}
        self._compiled: dict[tuple[object, ...], Packed | None] = {}

    def launch(self, grid: int, arguments: Arguments) -> None:
        """Launch ``grid`` programs on the current stream of the first tensor's device."""
        if interpreting():
            self._jit[(grid,)](*arguments.tensors, *arguments.numbers, **self._constants)
            return
        index = arguments.index
        if index != torch.cuda.current_device():
            with torch.cuda.device(index):
                self.launch(grid, arguments)
            return
        found = self._compiled.get(arguments.kind)
        if found is not None:
            stream = torch._C._cuda_getCurrentRawStream(index)
            if not found.launch(grid, stream, arguments.values):
                return
        # The first time; and after an error, which Triton names, or mends where it is but that
        # this thread has no context yet.
        started = self._jit[(grid,)](
            *arguments.tensors, *arguments.numbers, **self._constants, **self._options
        )
        if arguments.kind not in self._compiled:
            self._compiled[arguments.kind] = packed(started)


def packed(compiled: Any) -> Packed | None:
    """Prepare a compiled kernel for launches by the driver; None where it asks for more."""
    about = compiled.metadata
    wishes = (
        "launch_cooperative_grid", "launch_pdl", "global_scratch_size", "profile_scratch_size",
    )  # fmt: skip
    if about.num_ctas != 1 or any(getattr(about, wish, 0) for wish in wishes):
        return None
    types = [one for one in compiled.src.signature.values() if one != "constexpr"]
    form = packing(compiled.function, types)
    if form is None:
        return None
    return Packed(compiled.function, *form, 32 * about.num_warps, about.shared)


class Streams(NamedTuple):
    """A stream, a second one, and the events at which they wait for each other.

    Both meet again in ``join``, so that no tensor is freed while the other stream uses it.
    """

    own: torch.cuda.Stream
    second: torch.cuda.Stream
    begin: torch.cuda.Event
    end: torch.cuda.Event

    def resume(self) -> None:
        """Launch on the first stream again."""
        torch.cuda.set_stream(self.own)

    def switch(self) -> None:
        """Launch on the second stream."""
        torch.cuda.set_stream(self.second)

    def join(self) -> None:
        """Make the first stream wait for the second."""
        self.end.record(self.second)
        self.own.wait_event(self.end)


@lru_cache(maxsize=64)
def _streams(own: torch.cuda.Stream) -> Streams:
    # Before the other's blocks, which would otherwise keep this one waiting for their end.
    second = torch.cuda.Stream(own.device, priority=-1)  # type: ignore[no-untyped-call]
    return Streams(own, second, torch.cuda.Event(), torch.cuda.Event())  # type: ignore[no-untyped-call]


def part_streams(device: torch.device) -> Streams | None:
    """Fork a second stream that follows the current one; None without streams."""
    if device.type != "cuda":
        return None
    streams = _streams(torch.cuda.current_stream(device))
    streams.begin.record(streams.own)
    streams.second.wait_event(streams.begin)
    return streams
