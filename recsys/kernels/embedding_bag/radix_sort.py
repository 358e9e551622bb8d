"""Sort keys with values on an NVIDIA GPU, by as many bits as the keys have.

`torch.sort` sorts all 32 bits, carries 64-bit indices along and takes 15 launches. Triton cannot
rank a tile's keys by digit, so this one kernel is CUDA C++, compiled by NVRTC at its first use.
Where that is not to be had, `sorter` says None and the caller takes `torch.sort`.
"""

from __future__ import annotations

import ctypes
import logging
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

THREADS, MAX_BITS = 512, 9
MOST_PAIRS = 1 << 30
"""A count shares its word with two bits."""


class _Pass(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in (
            "keys", "values", "sorted_keys", "sorted_values", "digits", "status", "next_tile",
        )),
        ("count", ctypes.c_int),
        ("shift", ctypes.c_int),
    )  # fmt: skip


class _Count(ctypes.Structure):
    _fields_ = (("keys", ctypes.c_void_p), ("digits", ctypes.c_void_p), ("count", ctypes.c_int))


class Sorter(NamedTuple):
    """Compiled kernels for keys of so many digits of so many bits, and tiles of so many pairs."""

    count_digits: ctypes.c_void_p
    sort_by_digit: ctypes.c_void_p
    bits: int
    passes: int
    tile: int
    driver: ctypes.CDLL


def sorter(keys: Tensor, num_keys: int) -> Sorter | None:
    """Choose kernels for int32 keys in [0, num_keys); None where they cannot be had."""
    count = keys.shape[0]
    if not keys.is_cuda or keys.dtype != torch.int32 or not 0 < count < MOST_PAIRS:
        return None
    # Small tiles where large ones would leave multiprocessors idle.
    items = 4 if count <= 1 << 19 else 8 if count <= 1 << 20 else 12
    return _compiled(keys.device.index, max(1, (num_keys - 1).bit_length()), items)


@lru_cache(maxsize=64)
def _compiled(index: int, num_bits: int, items: int) -> Sorter | None:
    passes = -(-num_bits // MAX_BITS)
    bits = -(-num_bits // passes)
    source = (Path(__file__).parent / "radix_sort.cu").read_text(encoding="utf-8")
    sizes = {"THREADS": THREADS, "BITS": bits, "PASSES": passes, "ITEMS": items}
    source = "".join(f"#define {name} {size}\n" for name, size in sizes.items()) + source
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        with torch.cuda.device(index):
            # Private, so any failure has the same answer.
            kernels = [
                torch.cuda._compile_kernel(source, name).func
                for name in ("count_digits", "sort_by_digit")
            ]
    except Exception as error:
        logger.warning("radix_sort_unavailable reason=%r; torch.sort takes its place", error)
        return None
    return Sorter(kernels[0], kernels[1], bits, passes, THREADS * items, driver)


def sort_pairs(own: Sorter, keys: Tensor, values: Tensor | None, work: Tensor) -> Tensor:
    """Sort stably by key; return the keys in order.

    Args:
        own: Of ``sorter``.
        keys: [M] int32.
        values: [M] int32; None for 0, 1, ..., M - 1.
        work: [>= 3 M] int32. Its first M become the values in the order of their keys, what is in
            the other two thirds is lost.
    """
    count, device = keys.shape[0], keys.device
    bins, tiles = 1 << own.bits, -(-count // own.tile)
    # Digits of all passes, numbers of the next tiles, then each pass's words of tiles.
    words = torch.zeros(own.passes * (bins + 1 + tiles * bins), dtype=torch.int32, device=device)
    all_digits = words.data_ptr()
    next_tiles = all_digits + 4 * own.passes * bins
    status = next_tiles + 4 * own.passes
    sorted_keys = torch.empty_like(keys)
    room, third = work.data_ptr(), work.shape[0] // 3 * 4
    ways = ((sorted_keys.data_ptr(), room), (room + third, room + 2 * third))
    stream = ctypes.c_void_p(torch.cuda.current_stream(device).cuda_stream)
    source = (keys.data_ptr(), None if values is None else values.data_ptr())
    _launch(own, own.count_digits, min(tiles, 264), stream, _Count(source[0], all_digits, count))
    for one in range(own.passes):
        # The last pass ends in the results.
        target = ways[(own.passes - 1 - one) % 2]
        digits = all_digits + 4 * one * bins
        of_tiles = status + 4 * one * tiles * bins
        arguments = _Pass(
            *source, *target, digits, of_tiles, next_tiles + 4 * one, count, one * own.bits
        )
        _launch(own, own.sort_by_digit, tiles, stream, arguments)
        source = target
    return sorted_keys


def _launch(
    own: Sorter,
    kernel: ctypes.c_void_p,
    grid: int,
    stream: ctypes.c_void_p,
    arguments: ctypes.Structure,
) -> None:
    pointers = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
    failed = own.driver.cuLaunchKernel(kernel, grid, 1, 1, THREADS, 1, 1, 0, stream, pointers, None)
    if failed:
        raise RuntimeError(f"cuLaunchKernel failed with error {failed} of the CUDA driver")
