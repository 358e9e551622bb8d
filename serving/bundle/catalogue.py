"""A bundle's items: ids, texts and categories by item row, memory-mapped.

    catalogue/item_ids          text by item row, row 0 empty
    catalogue/display_texts     what a page shows for the item
    catalogue/category_names    text by category row, row 0 empty
    catalogue/item_categories   values [M] and offsets [N + 1]: category rows of each item

Axes: N item rows (row 0 included), M category rows of all items together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from recsys.data.string_table import StringTable, write_string_table

Rows = NDArray[np.int64]
FOLDER = "catalogue"


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Name the file in whatever goes wrong while it is read."""
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
        for _ in table:
            pass
    return table


def check_ragged(path: Path, values: Rows, offsets: Rows, num_owners: int, num_rows: int) -> None:
    """Check that offsets cut values into one range per owner and values are rows of a table.

    Raises:
        ValueError: Names the file and what does not fit.
    """
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


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """What is known of every item row and every category row."""

    item_ids: StringTable
    display_texts: StringTable
    category_names: StringTable
    category_values: Rows
    """[M] category rows of all items."""
    category_offsets: Rows
    """[N + 1]."""

    @classmethod
    def from_lists(
        cls,
        *,
        item_ids: Sequence[str],
        display_texts: Sequence[str],
        category_names: Sequence[str],
        category_values: Rows,
        category_offsets: Rows,
    ) -> Catalogue:
        """Take items 1 .. N - 1 and categories 1 .. C - 1 in row order; rows 0 are added."""
        return cls(
            item_ids=StringTable.from_strings(["", *item_ids]),
            display_texts=StringTable.from_strings(["", *display_texts]),
            category_names=StringTable.from_strings(["", *category_names]),
            category_values=category_values,
            category_offsets=category_offsets,
        )

    @classmethod
    def load(cls, bundle: Path) -> Catalogue:
        folder = bundle / FOLDER
        return cls(
            item_ids=load_strings(folder, "item_ids"),
            display_texts=load_strings(folder, "display_texts"),
            category_names=load_strings(folder, "category_names"),
            category_values=load_rows(folder / "item_categories.values.npy"),
            category_offsets=load_rows(folder / "item_categories.offsets.npy"),
        )

    def save(self, bundle: Path) -> None:
        folder = bundle / FOLDER
        folder.mkdir()
        write_string_table(folder, "item_ids", list(self.item_ids))
        write_string_table(folder, "display_texts", list(self.display_texts))
        write_string_table(folder, "category_names", list(self.category_names))
        np.save(folder / "item_categories.values.npy", np.asarray(self.category_values, np.int64))
        np.save(folder / "item_categories.offsets.npy", np.asarray(self.category_offsets, np.int64))

    @property
    def num_item_rows(self) -> int:
        return len(self.item_ids)

    @property
    def num_category_rows(self) -> int:
        return len(self.category_names)

    def row_of(self, item_id: str) -> int | None:
        """Find an item's row; None for an unknown item and for the empty id of row 0."""
        return self.item_ids.row_of(item_id) or None

    def title_of(self, item_row: int) -> str:
        """Give an item's display text, or its id where it has none."""
        return self.display_texts[item_row] or self.item_ids[item_row]

    def categories_of(self, item_row: int) -> list[str]:
        """Name an item's categories."""
        first, last = self.category_offsets[item_row : item_row + 2].tolist()
        return [
            self.category_names[row] for row in self.category_values[first:last].tolist() if row
        ]

    def rows_in_categories(self, category_rows: Sequence[int]) -> Rows:
        """List the item rows that have at least one of the categories."""
        hits = np.flatnonzero(np.isin(self.category_values, list(category_rows)))
        rows: Rows = np.searchsorted(self.category_offsets, hits, side="right") - 1
        return np.unique(rows)

    def extended(self, more: Catalogue) -> Catalogue:
        """Append another catalogue's items and categories; its row 0 is left out."""
        return Catalogue(
            item_ids=_append(self.item_ids, more.item_ids),
            display_texts=_append(self.display_texts, more.display_texts),
            category_names=_append(self.category_names, more.category_names),
            category_values=np.concatenate([self.category_values, more.category_values]),
            category_offsets=np.concatenate(
                [self.category_offsets, self.category_offsets[-1] + more.category_offsets[2:]]
            ),
        )

    def check(self, directory: Path, num_category_rows: int | None = None) -> None:
        """Check that the parts fit each other.

        Args:
            directory: Named in errors.
            num_category_rows: Category rows the values may name; by default the table's.

        Raises:
            ValueError: Names what does not fit.
        """
        if len(self.display_texts) != self.num_item_rows:
            raise ValueError(
                f"{directory / FOLDER} has {self.num_item_rows} item_ids and "
                f"{len(self.display_texts)} display_texts rows; its parts come from different "
                "runs, release the bundle again"
            )
        check_ragged(
            directory / FOLDER / "item_categories",
            self.category_values,
            self.category_offsets,
            self.num_item_rows,
            num_category_rows or self.num_category_rows,
        )
        check_distinct(directory / FOLDER / "item_ids", self.item_ids)
        check_distinct(directory / FOLDER / "category_names", self.category_names)


def check_distinct(path: Path, table: StringTable) -> None:
    """Check that row 0 is empty and no text stands twice (an empty id would).

    Raises:
        ValueError: Names the table and the first repeated text.
    """
    if len(table) == 0 or table[0] != "":
        raise ValueError(f"{path} must begin with the empty text of row 0 (padding)")
    seen: set[str] = set()
    for row, text in enumerate(table):
        if text in seen:
            raise ValueError(
                f"{path} holds {text!r} a second time at row {row}; ids must be distinct and not "
                "empty, build the vocabulary again"
            )
        seen.add(text)


def _append(table: StringTable, more: StringTable) -> StringTable:
    return StringTable.from_strings([*table, *list(more)[1:]])
