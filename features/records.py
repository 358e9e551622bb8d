"""Events as fixed-width integer records in flat files, so that memory never holds all of them.

A counting sort on disk moves records into ranges of a key; each range fits into memory and is
sorted there.

Axes: E records, K ranges of the key.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.parallel import in_order

Records = NDArray[Any]
Rows = NDArray[np.int64]

SLICE_RECORDS = 1_000_000


def take(records: Records, places: Rows) -> Records:
    """Gather records by place.

    numpy copies records of mixed types field by field; as rows of bytes it is 25 times faster.
    """
    rows = records.view(np.uint8).reshape(len(records), records.dtype.itemsize)
    taken: Records = rows.take(places, axis=0).view(records.dtype).reshape(len(places))
    return taken


def compressed(records: Records, kept: NDArray[np.bool_]) -> Records:
    """Gather the records that a mask keeps."""
    return records if kept.all() else take(records, np.flatnonzero(kept))


class RecordFile:
    """A flat file of records; written by appending, read in slices.

    A file that is there is written over: its pages are in memory, and taking new ones costs the
    kernel 15 times more.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        self.path = path
        self.dtype = dtype
        self.length = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        self._file = path.open("r+b", buffering=0)
        # Also where an error ends the build with the file open.
        weakref.finalize(self, self._file.close)

    @classmethod
    def existing(cls, path: Path, dtype: np.dtype[Any]) -> RecordFile:
        """Open a file that must be there."""
        if not path.exists():
            raise ValueError(
                f"{path} is missing: a part of the events was deleted, or is on a disk that this "
                "machine does not see, while they were prepared; run the stage again"
            )
        return cls(path, dtype)

    def append(self, records: Records) -> None:
        self.write(self.length, records)
        self.length += len(records)

    def write(self, start: int, records: Records) -> None:
        """Overwrite records at [start, start + E)."""
        data = np.ascontiguousarray(records).view(np.uint8).data
        offset = start * self.dtype.itemsize
        while data:
            written = os.pwrite(self._file.fileno(), data, offset)
            data, offset = data[written:], offset + written

    def read(self, start: int, end: int) -> Records:
        """Read the records [start, end)."""
        records = np.empty(end - start, self.dtype)
        data = records.view(np.uint8).data
        offset = start * self.dtype.itemsize
        while data:
            got = os.preadv(self._file.fileno(), [data], offset)
            if got == 0:
                raise OSError(f"{self.path} is shorter than the {end} records it had")
            data, offset = data[got:], offset + got
        return records

    def slices(self) -> Iterator[Records]:
        """Read front to back, in slices of SLICE_RECORDS."""
        for start, end in pairwise([*range(0, self.length, SLICE_RECORDS), self.length]):
            yield self.read(start, end)

    def close(self) -> None:
        self._file.close()


def partition(
    parts: Iterator[Records],
    target: RecordFile,
    mapped: Callable[[Records], Records],
    key: Callable[[Records], NDArray[np.uint16]],
    counts: Rows,
    starts: Rows,
) -> None:
    """Write records by ascending key, those of one key in the order they come (counting sort).

    Args:
        key: Range of each mapped record, in [0, K); numpy sorts 16-bit integers by radix, many
            times faster than wider ones.
        counts: Mapped records of each range, [K].
        starts: Where those of each range go, [K].
    """

    def grouped(part: Records) -> tuple[Records, Rows]:
        part = mapped(part)
        if len(counts) == 1:
            return part, np.array([len(part)])
        ranges = key(part)
        order = np.argsort(ranges, kind="stable")
        return take(part, order), np.bincount(ranges, minlength=len(counts))

    cursor, ends = starts.copy(), starts + counts
    for part, sizes in in_order(grouped, parts):
        start = 0
        for number in np.flatnonzero(sizes).tolist():
            end = start + int(sizes[number])
            target.write(int(cursor[number]), part[start:end])
            cursor[number] += end - start
            start = end
    target.length = int(ends.max(initial=0))
    assert np.array_equal(cursor, ends)


def stable_order(keys: Sequence[NDArray[Any]]) -> Rows:
    """Order records by several keys, most significant first; equal ones keep their order.

    Where the keys' ranges fit into 64 bits together, one sort of integers does it, 6 to 20 times
    faster than a lexicographic sort.
    """
    num = len(keys[0])
    if num == 0:
        return np.zeros(0, np.int64)
    place_bits = max(1, int(num - 1).bit_length())
    lows = [int(key.min()) for key in keys]
    widths = [(int(key.max()) - low).bit_length() for key, low in zip(keys, lows, strict=True)]
    if sum(widths) > 63:
        order: Rows = np.lexsort(tuple(reversed(keys)))
        return order
    packed = np.zeros(num, np.int64)
    for key, low, width in zip(keys, lows, widths, strict=True):
        packed <<= width
        packed |= key.astype(np.int64) - low
    if sum(widths) + place_bits > 63:
        return _settled(packed, np.argsort(packed))
    packed <<= place_bits
    packed |= np.arange(num)
    packed.sort()
    packed &= (1 << place_bits) - 1
    return packed


def _settled(packed: Rows, order: Rows) -> Rows:
    """Put the places of equal keys, which an unstable sort mixed, into ascending order."""
    ordered = packed[order]
    tied = np.zeros(len(order), np.bool_)
    tied[1:] = ordered[1:] == ordered[:-1]
    tied[:-1] |= tied[1:]
    at = np.flatnonzero(tied)
    if len(at):
        places = order[at]
        order[at] = places[np.lexsort((places, ordered[at]))]
    return order
