"""Sort keys with values on an NVIDIA GPU, by as many bits as the keys have.

`torch.sort` sorts all 32 bits, carries 64-bit indices along and takes 15 launches. Triton cannot
rank a tile's keys by digit, so this one kernel is CUDA C++, compiled by NVRTC at its first use.
Where that is not to be had, `sorter` says None and the caller takes `torch.sort`.
"""

from __future__ import annotations

import logging
import struct
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from recsys.kernels.embedding_bag.cuda_driver import Packed

logger = logging.getLogger(__name__)

THREADS, MAX_BITS = 512, 9
MOST_PAIRS = 1 << 30
"""A count shares its word with two bits."""


COUNTED, MOST_COUNTING = 8, 396
"""Keys that a thread counts at a time, and most blocks that count."""
COUNT, PASS = "QQi0Q", "QQQQQQQii"
"""Members of the kernels' arguments: addresses, then whole numbers."""


class Sorter(NamedTuple):
    """Compiled kernels for keys of so many digits of so many bits, and tiles of so many pairs."""

    count_digits: Packed
    sort_by_digit: Packed
    bits: int
    passes: int
    tile: int

    def num_words(self, count: int) -> int:
        """Count the words of ``count`` pairs: digits, numbers of next tiles, words of tiles."""
        bins = 1 << self.bits
        return self.passes * (bins + 1 + -(-count // self.tile) * bins)


def sorter(device: torch.device, count: int, num_keys: int) -> Sorter | None:
    """Choose kernels for int32 keys in [0, num_keys); None where they cannot be had."""
    if device.type != "cuda" or num_keys > 1 << 31 or not 0 < count < MOST_PAIRS:
        return None
    # Small tiles where large ones would leave multiprocessors idle.
    items = 4 if count <= 1 << 19 else 8 if count <= 1 << 20 else 12
    return _compiled(device.index, max(1, (num_keys - 1).bit_length()), items)


@lru_cache(maxsize=64)
def _compiled(index: int, num_bits: int, items: int) -> Sorter | None:
    passes = -(-num_bits // MAX_BITS)
    bits = -(-num_bits // passes)
    source = (Path(__file__).parent / "radix_sort.cu").read_text(encoding="utf-8")
    sizes = {
        "THREADS": THREADS, "BITS": bits, "PASSES": passes, "ITEMS": items, "COUNTED": COUNTED,
    }  # fmt: skip
    source = "".join(f"#define {name} {size}\n" for name, size in sizes.items()) + source
    try:
        with torch.cuda.device(index):
            # Private, so any failure has the same answer.
            count_digits, sort_by_digit = (
                Packed(
                    torch.cuda._compile_kernel(source, name).func.value,
                    form,
                    struct.calcsize(form),
                    THREADS,
                )
                for name, form in (("count_digits", COUNT), ("sort_by_digit", PASS))
            )
    except Exception as error:
        logger.warning("radix_sort_unavailable reason=%r; torch.sort takes its place", error)
        return None
    return Sorter(count_digits, sort_by_digit, bits, passes, THREADS * items)


def sort_pairs(
    own: Sorter, keys: Tensor, values: Tensor | None, work: Tensor, words: Tensor
) -> Tensor:
    """Sort stably by key; return the keys in order.

    Args:
        own: Of ``sorter``.
        keys: [M] int32.
        values: [M] int32; None for 0, 1, ..., M - 1.
        work: [>= 3 M] int32. Its first M become the values in the order of their keys, what is in
            the other two thirds is lost.
        words: [>= num_words(M)] int32, the last of them 0; must stay until the sort is over.
    """
    count, index = keys.shape[0], keys.device.index
    bins, tiles = 1 << own.bits, -(-count // own.tile)
    all_digits = words.data_ptr() + 4 * (words.shape[0] - own.num_words(count))
    next_tiles = all_digits + 4 * own.passes * bins
    status = next_tiles + 4 * own.passes
    sorted_keys = torch.empty_like(keys)
    room, third = work.data_ptr(), work.shape[0] // 3 * 4
    ways = ((sorted_keys.data_ptr(), room), (room + third, room + 2 * third))
    stream = torch._C._cuda_getCurrentRawStream(index)
    source = (keys.data_ptr(), 0 if values is None else values.data_ptr())
    blocks = min(-(-count // (THREADS * COUNTED)), MOST_COUNTING)
    failed = own.count_digits.launch(blocks, stream, (source[0], all_digits, count))
    for one in range(own.passes):
        # The last pass ends in the results.
        target = ways[(own.passes - 1 - one) % 2]
        digits = all_digits + 4 * one * bins
        of_tiles = status + 4 * one * tiles * bins
        arguments = (
            *source, *target, digits, of_tiles, next_tiles + 4 * one, count, one * own.bits,
        )  # fmt: skip
        failed = failed or own.sort_by_digit.launch(tiles, stream, arguments)
        source = target
    if failed:
        raise RuntimeError(f"cuLaunchKernel failed with error {failed} of the CUDA driver")
    return sorted_keys
