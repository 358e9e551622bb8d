"""Many strings in two memory-mapped arrays: item ids, titles, user ids of a bundle.

``<name>.utf8.npy`` holds all texts' UTF-8 bytes one after the other, ``<name>.offsets.npy`` where
each begins. Opening it costs nothing, workers share its pages, and it needs no parser.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_CHUNK = 1 << 16


def _packed(strings: Sequence[str], name: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Put the texts' UTF-8 bytes one after the other; return them and where each begins."""
    encoded = []
    for row, text in enumerate(strings):
        try:
            encoded.append(text.encode())
        except UnicodeEncodeError as error:
            raise ValueError(
                f"string {row} of table {name!r} is not valid text ({error.reason}): {text!r}; "
                "remove lone surrogates from the source"
            ) from error
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    return np.frombuffer(b"".join(encoded), np.uint8), offsets


def write_string_table(directory: Path, name: str, strings: Sequence[str]) -> list[Path]:
    """Write the strings and return the two files."""
    utf8, offsets = _packed(strings, name)
    paths = [directory / f"{name}.utf8.npy", directory / f"{name}.offsets.npy"]
    np.save(paths[0], utf8, allow_pickle=False)
    np.save(paths[1], offsets, allow_pickle=False)
    return paths


class StringTable:
    """Read side: ``table[row]`` is the text, ``row_of(text)`` the row."""

    def __init__(self, utf8: NDArray[np.uint8], offsets: NDArray[np.int64]) -> None:
        """Take the bytes of all texts, [num_bytes], and where each begins, [num_strings + 1]."""
        rising = len(offsets) > 0 and offsets[0] == 0 and bool((np.diff(offsets) >= 0).all())
        if not rising or offsets[-1] != len(utf8):
            raise ValueError(
                f"string table offsets do not fit its {len(utf8)} bytes; "
                "the files are damaged or belong to different tables, write them again"
            )
        self._utf8 = utf8
        self._offsets = offsets
        self._rows: dict[str, int] | None = None
        self._before: StringTable | None = None

    @classmethod
    def open(cls, directory: Path, name: str) -> StringTable:
        utf8, offsets = (
            np.load(directory / f"{name}.{part}.npy", mmap_mode="r", allow_pickle=False)
            for part in ("utf8", "offsets")
        )
        return cls(utf8, offsets)

    @classmethod
    def from_strings(cls, strings: Sequence[str]) -> StringTable:
        """Build a table that lives in memory; raises as ``write_string_table`` does."""
        return cls(*_packed(strings, "in memory"))

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> str:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} is not in [0, {len(self)})")
        return bytes(self._utf8[self._offsets[row] : self._offsets[row + 1]]).decode()

    def __iter__(self) -> Iterator[str]:
        for begin in range(0, len(self), _CHUNK):
            yield from self._decoded(begin, begin + _CHUNK)

    def check(self) -> None:
        for begin in range(0, len(self), _CHUNK):
            self._joined(begin, begin + _CHUNK)

    def _decoded(self, begin: int, end: int) -> list[str]:
        """Decode the rows of a range at once, ten times as fast as one by one."""
        text, places = self._joined(begin, end)
        return [text[first:last] for first, last in pairwise(places.tolist())]

    def _joined(self, begin: int, end: int) -> tuple[str, NDArray[np.int64]]:
        """Decode the texts of a range as one; return it and where each text begins and ends."""
        offsets = self._offsets[begin : end + 1]
        utf8 = self._utf8[offsets[0] : offsets[-1]]
        text, places = utf8.tobytes().decode(), offsets - offsets[0]
        if len(text) == len(utf8):
            return text, places
        leads = (utf8 & 0xC0) != 0x80  # bytes that a character begins with
        if not leads[places[places < len(utf8)]].all():
            raise ValueError(
                f"a string of rows {begin} to {end} begins inside a character; the table is "
                "damaged, write it again"
            )
        return text, np.concatenate([[0], leads.cumsum()])[places]

    def row_of(self, text: str) -> int | None:
        """Find a text's first row, None where there is none; the first call builds the index."""
        row = None if self._before is None else self._before.row_of(text)
        return self._index().get(text) if row is None else row

    def first_repeated(self) -> int | None:
        """Find the first row whose text is in an earlier row; None where all differ."""
        before, num_before = self._before, 0
        if before is not None:
            if (row := before.first_repeated()) is not None:
                return row
            num_before = len(before)
        if len(self._index()) == len(self) - num_before:
            return None
        return next(row for row, text in enumerate(self) if self.row_of(text) != row)

    def extended(self, strings: Sequence[str]) -> StringTable:
        """Append texts in memory; the index of the rows before is shared, not built again."""
        utf8, offsets = _packed(strings, "in memory")
        table = StringTable(
            np.concatenate([self._utf8, utf8]),
            np.concatenate([self._offsets, self._offsets[-1] + offsets[1:]]),
        )
        table._before = self
        return table

    def _index(self) -> dict[str, int]:
        if self._rows is None:
            before = self._before
            first = 0 if before is None else len(before)
            texts = list(self) if before is None else self._decoded(first, len(self))
            rows = range(len(self) - 1, first - 1, -1)
            self._rows = dict(zip(reversed(texts), rows, strict=True))
            if before is not None:
                self._rows = {
                    text: row for text, row in self._rows.items() if before.row_of(text) is None
                }
        return self._rows
