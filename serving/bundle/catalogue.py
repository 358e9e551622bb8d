"""A bundle's items: ids, texts and categories by item row, memory-mapped.

    catalogue/item_ids          text by item row, row 0 empty
    catalogue/display_texts     what a page shows for the item
    catalogue/category_names    text by category row, row 0 empty
    catalogue/item_categories   values [M] and offsets [N + 1]: category rows of each item

Axes: N item rows (row 0 included), M category rows of all items together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from recsys.data.string_table import StringTable
from serving.bundle.arrays import StoredArrays, check_distinct, check_ragged, check_rows
from serving.bundle.properties import ListColumn

Rows = NDArray[np.int64]
FOLDER = "catalogue"
MAX_TITLE = 500
"""Characters of a title as it is shown."""
MAX_SHOWN_CATEGORIES = 50
"""Categories of an item as they are shown."""


@dataclass(frozen=True, kw_only=True)
class Catalogue(StoredArrays):
    """Ids, texts and categories by item row, names by category row."""

    FILES: ClassVar = {
        "item_ids": "/item_ids",
        "display_texts": "/display_texts",
        "category_names": "/category_names",
        "category_values": "/item_categories.values",
        "category_offsets": "/item_categories.offsets",
    }

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
        return cls.read(bundle / FOLDER)

    def save(self, bundle: Path) -> None:
        self.write(bundle / FOLDER)

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
        """Return an item's display text, cut to `MAX_TITLE`, or its id where it has none."""
        return self.display_texts[item_row][:MAX_TITLE] or self.item_ids[item_row]

    def categories_of(self, item_row: int) -> list[str]:
        """List an item's categories, the first `MAX_SHOWN_CATEGORIES`."""
        first, last = self.category_offsets[item_row : item_row + 2].tolist()
        shown = self.category_values[first : min(last, first + MAX_SHOWN_CATEGORIES)]
        return [self.category_names[row] for row in shown.tolist() if row]

    @cached_property
    def categories(self) -> ListColumn:
        """The items' categories as a property of them."""
        return ListColumn(
            texts=self.category_names, codes=self.category_values, offsets=self.category_offsets
        )

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

    def check(self, directory: Path) -> None:
        """Check that the parts fit each other."""
        path = directory / FOLDER / "display_texts"
        check_rows(path, (len(self.display_texts),), (self.num_item_rows,))
        check_ragged(
            directory / FOLDER / "item_categories",
            self.category_values,
            self.category_offsets,
            self.num_item_rows,
            self.num_category_rows,
        )
        check_distinct(directory / FOLDER / "item_ids", self.item_ids)
        check_distinct(directory / FOLDER / "category_names", self.category_names)


def _append(table: StringTable, more: StringTable) -> StringTable:
    return table.extended(list(more)[1:])
