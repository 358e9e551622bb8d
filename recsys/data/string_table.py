"""Many strings in two memory-mapped arrays: item ids, titles, user ids of a bundle.

``<name>.utf8.npy`` holds all texts' UTF-8 bytes one after the other, ``<name>.offsets.npy`` where
each begins. Opening it costs nothing, workers share its pages, and it needs no parser.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


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
    """Write the strings and return the two files.

    Raises:
        ValueError: If a string cannot be written as UTF-8 (a lone surrogate).
    """
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
        return (self[row] for row in range(len(self)))

    def row_of(self, text: str) -> int | None:
        """Find a text's first row, None where there is none; the first call builds the index."""
        if self._rows is None:
            self._rows = {self[row]: row for row in range(len(self) - 1, -1, -1)}
        return self._rows.get(text)
