"""Launch compiled kernels through CUDA's driver, their arguments packed into one buffer.

A pack and a call take the host about 2 us, Triton's own launch 10 and more.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from functools import cache

CODES = {"i32": "i", "i64": "q", "fp32": "f"}
MOST_SCRATCH = 2
"""Pointers that Triton passes behind a kernel's own arguments."""
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
