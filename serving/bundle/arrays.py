"""Arrays and tables of texts in a bundle: memory-mapped, and checked against each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from recsys.data.string_table import StringTable, write_string_table

Rows = NDArray[np.int64]
Numbers = NDArray[np.float64]


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Add the file's name to any error while it is read."""
    try:
        yield
    except Exception as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{path} of the bundle cannot be used: {why}") from error


def load_array(path: Path, kind: type[np.generic], num_axes: int = 1) -> NDArray[np.generic]:
    """Memory-map an array and check its type and number of axes; never a pickle.

    Copy-on-write, so that torch takes it without a copy and nothing can write to the file; a plain
    array over the mapping, because slicing numpy's memmap class costs several times as much.
    """
    with reading(path):
        array: NDArray[np.generic] = np.load(path, mmap_mode="c", allow_pickle=False)
        if array.dtype != np.dtype(kind) or array.ndim != num_axes:
            raise ValueError(
                f"it holds {array.dtype} {array.shape}, expected {np.dtype(kind)} with {num_axes} "
                "axes; release the bundle again"
            )
    return np.asarray(array)


def load_rows(path: Path) -> Rows:
    """Memory-map int64 rows, [n]."""
    return load_array(path, np.int64).view(np.int64)


def load_strings(directory: Path, name: str) -> StringTable:
    """Memory-map a table of texts and check that each is valid UTF-8."""
    utf8 = load_array(directory / f"{name}.utf8.npy", np.uint8).view(np.uint8)
    offsets = load_rows(directory / f"{name}.offsets.npy")
    with reading(directory / f"{name}.utf8.npy"):
        table = StringTable(utf8, offsets)
        table.check()
    return table


class StoredArrays:
    """A dataclass with fields in files; what it writes is what it reads.

    The field's type says how: `StringTable`, `Rows` or `Numbers`. One whose default is None may be
    absent.
    """

    FILES: ClassVar[Mapping[str, str]]
    """File of each stored field, after a prefix of them all and without its ending."""

    @classmethod
    def _stored(cls) -> Iterator[tuple[Field[Any], str]]:
        for one in fields(cls):  # type: ignore[arg-type]
            if one.name in cls.FILES:
                yield one, cls.FILES[one.name]

    @classmethod
    def read(cls, prefix: Path, **others: Any) -> Self:
        """Memory-map the files whose paths begin with a prefix."""
        for one, file in cls._stored():
            path, array = Path(f"{prefix}{file}"), Path(f"{prefix}{file}.npy")
            if one.type == "StringTable":
                others[one.name] = load_strings(path.parent, path.name)
            elif one.type == "Numbers":
                others[one.name] = load_array(array, np.float64).view(np.float64)
            elif one.default is not None or array.exists():
                others[one.name] = load_rows(array)
        return cls(**others)

    def write(self, prefix: Path) -> None:
        """Write the files; folders are made."""
        for one, file in self._stored():
            path, value = Path(f"{prefix}{file}"), getattr(self, one.name)
            path.parent.mkdir(exist_ok=True)
            if one.type == "StringTable":
                write_string_table(path.parent, path.name, list(value))
            elif value is not None:
                kind = np.float64 if one.type == "Numbers" else np.int64
                np.save(f"{path}.npy", np.asarray(value, kind))

    @classmethod
    def list_files(cls, prefix: str) -> Iterator[str]:
        """List the names of the files."""
        for one, file in cls._stored():
            for part in (".utf8", ".offsets") if one.type == "StringTable" else ("",):
                yield f"{prefix}{file}{part}.npy"


def check_ragged(path: Path, values: Rows, offsets: Rows, num_owners: int, num_rows: int) -> None:
    """Check that offsets cut values into one range per owner and values are rows of a table."""
    if len(offsets) != num_owners + 1:
        raise ValueError(
            f"{path} has offsets for {len(offsets) - 1} rows, the bundle has {num_owners}; its "
            "parts come from different runs, release it again"
        )
    if offsets[0] != 0 or offsets[-1] != len(values) or (np.diff(offsets) < 0).any():
        raise ValueError(f"{path} has offsets that do not cut its {len(values)} values")
    if len(values) and not 0 <= values.min() <= values.max() < num_rows:
        raise ValueError(
            f"{path} holds rows {values.min()} to {values.max()}, allowed are [0, {num_rows}); its "
            "parts come from different runs, release it again"
        )


def check_distinct(path: Path, table: StringTable) -> None:
    """Check that row 0 is empty and no text is repeated (an empty id would)."""
    if len(table) == 0 or table[0] != "":
        raise ValueError(f"{path} must begin with the empty text of row 0 (padding)")
    if (row := table.first_repeated()) is not None:
        raise ValueError(
            f"{path} holds {table[row]!r} a second time at row {row}; ids must be distinct and not "
            "empty, build the vocabulary again"
        )


def check_rows(path: Path, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Hold the shape of a part against the rest of the bundle."""
    if found != expected:
        raise ValueError(
            f"{path} is {' x '.join(map(str, found))}, the rest of the bundle needs "
            f"{' x '.join(map(str, expected))}; its parts come from different runs, release the "
            "bundle again"
        )
