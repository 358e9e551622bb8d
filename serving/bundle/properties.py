"""Properties of items besides titles and categories: price, brand, release year and the like.

    properties/<name>            numbers by item row, NaN where missing, [N] float64
    properties/<name>.codes      rows of the texts by item row, 0 where missing, [N] int64; of
                                 lists the rows of all items together, [M]
    properties/<name>.offsets    item i owns codes[offsets[i]:offsets[i + 1]], [N + 1]; lists only
    properties/<name>.texts      distinct texts, row 0 empty

Dates are numbers of seconds since 1970 (UTC) and booleans are 0 and 1. An item whose list is empty
has no value, as one whose list is absent.

Axes: N item rows (row 0 included), M values of all lists together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from recsys.data.string_table import StringTable
from serving.bundle.arrays import Numbers, StoredArrays, check_distinct, check_ragged, check_rows
from serving.bundle.manifest import BundleManifest, PropertyKind

Mask = NDArray[np.bool_]
Rows = NDArray[np.int64]
FOLDER = "properties"
Shown = float | str | bool | list[str]
YEAR_1, YEAR_10_000 = -62_135_596_800, 253_402_300_800
"""In seconds since 1970: the dates that there are in ISO 8601."""
NumberKind = Literal["number", "date", "boolean"]


@dataclass(frozen=True, kw_only=True)
class NumberColumn(StoredArrays):
    """Numbers, dates or booleans."""

    FILES: ClassVar = {"values": ""}
    kind: NumberKind
    values: Numbers
    """[N], NaN where missing."""

    @property
    def num_item_rows(self) -> int:
        return len(self.values)

    def known(self) -> Mask:
        """Mask of the items that have a value, [N]."""
        return ~np.isnan(self.values)

    def extended(self, more: Column) -> NumberColumn:
        assert isinstance(more, NumberColumn)
        return NumberColumn(kind=self.kind, values=np.concatenate([self.values, more.values[1:]]))

    def check(self, path: Path) -> None:
        if np.isinf(self.values).any() or not math.isnan(self.values[0]):
            raise ValueError(
                f"{path} must hold finite numbers, and NaN where they are missing and in row 0; "
                "release the bundle again"
            )
        known = self.values[self.known()]
        if self.kind == "boolean" and not np.isin(known, (0, 1)).all():
            raise ValueError(f"{path} is a boolean and holds other numbers than 0 and 1")
        if self.kind == "date" and ((known < YEAR_1) | (known >= YEAR_10_000)).any():
            raise ValueError(f"{path} is a date and holds seconds outside of years 1 to 9999")

    def value_of(self, item_row: int) -> Shown | None:
        """Return an item's value, a date as ISO text; None where it is missing."""
        value = float(self.values[item_row])
        if math.isnan(value):
            return None
        if self.kind == "boolean":
            return bool(value)
        return value if self.kind == "number" else _iso(value)


@dataclass(frozen=True, kw_only=True)
class TextColumn(StoredArrays):
    """One text for each item."""

    FILES: ClassVar = {"texts": ".texts", "codes": ".codes"}
    texts: StringTable
    codes: Rows
    """[N], 0 where missing."""
    kind: Literal["text"] = "text"

    @property
    def num_item_rows(self) -> int:
        return len(self.codes)

    def known(self) -> Mask:
        """Mask of the items that have a text, [N]."""
        known: Mask = self.codes != 0
        return known

    def with_any(self, texts: Sequence[str]) -> Mask:
        """Mask of the items that have one of these texts, [N]."""
        wanted = np.zeros(len(self.texts), np.bool_)
        wanted[_find_codes(self.texts, texts)] = True
        return wanted[self.codes]

    def extended(self, more: Column) -> TextColumn:
        assert isinstance(more, TextColumn)
        texts, translated = _united(self.texts, more.texts)
        codes = np.concatenate([self.codes, translated[more.codes[1:]]])
        return TextColumn(texts=texts, codes=codes)

    def check(self, path: Path) -> None:
        check_distinct(path.with_name(f"{path.name}.texts"), self.texts)
        check_ragged(path, self.codes, np.array([0, len(self.codes)]), 1, len(self.texts))
        if self.codes[0]:
            raise ValueError(f"{path} has a text for row 0 (padding); release the bundle again")

    def value_of(self, item_row: int) -> Shown | None:
        """Return an item's text; None where it is missing."""
        return self.texts[int(self.codes[item_row])] or None


@dataclass(frozen=True, kw_only=True)
class ListColumn(StoredArrays):
    """Any number of texts for each item; its categories are held so too."""

    FILES: ClassVar = {"texts": ".texts", "codes": ".codes", "offsets": ".offsets"}
    texts: StringTable
    codes: Rows
    """[M]."""
    offsets: Rows
    """[N + 1]."""
    kind: Literal["list"] = "list"

    @property
    def num_item_rows(self) -> int:
        return len(self.offsets) - 1

    def known(self) -> Mask:
        """Mask of the items that have at least one text, [N]."""
        return self.offsets[1:] > self.offsets[:-1]

    def with_any(self, texts: Sequence[str]) -> Mask:
        """Mask of the items that have at least one of these texts, [N]."""
        found = np.zeros(self.num_item_rows, np.bool_)
        owners, begins = self._owners
        for code in _find_codes(self.texts, texts):
            found[owners[begins[code] : begins[code + 1]]] = True
        return found

    @cached_property
    def _owners(self) -> tuple[NDArray[np.int32], Rows]:
        """Item rows by code, [M], and where each code's begin; made at the first filter."""
        num_codes = len(self.texts)
        # numpy sorts 16-bit integers by radix, many times as fast as longer ones.
        keys = self.codes.astype(np.uint16 if num_codes <= 1 << 16 else np.int64)
        rows = np.repeat(np.arange(self.num_item_rows, dtype=np.int32), np.diff(self.offsets))
        begins = np.zeros(num_codes + 1, np.int64)
        np.cumsum(np.bincount(self.codes, minlength=num_codes), out=begins[1:])
        return rows[np.argsort(keys, kind="stable")], begins

    def extended(self, more: Column) -> ListColumn:
        assert isinstance(more, ListColumn)
        texts, translated = _united(self.texts, more.texts)
        return ListColumn(
            texts=texts,
            codes=np.concatenate([self.codes, translated[more.codes]]),
            offsets=np.concatenate([self.offsets, self.offsets[-1] + more.offsets[2:]]),
        )

    def check(self, path: Path) -> None:
        check_distinct(path.with_name(f"{path.name}.texts"), self.texts)
        check_ragged(path, self.codes, self.offsets, self.num_item_rows, len(self.texts))
        if self.offsets[1] or not self.codes.all():
            raise ValueError(
                f"{path} has texts for row 0 (padding), or empty texts; release the bundle again"
            )

    def value_of(self, item_row: int) -> Shown | None:
        """Return an item's texts; None where there are none."""
        first, last = self.offsets[item_row : item_row + 2].tolist()
        return [self.texts[code] for code in self.codes[first:last].tolist()] or None


Column = NumberColumn | TextColumn | ListColumn
_COLUMNS: dict[PropertyKind, type[Column]] = {
    "number": NumberColumn,
    "date": NumberColumn,
    "boolean": NumberColumn,
    "text": TextColumn,
    "list": ListColumn,
}


@dataclass(eq=False)
class Properties:
    """The properties of every item row, by name; of many bundles none."""

    columns: Mapping[str, Column]
    generation: int = 0
    """Number of times that values were renewed; masks of filters are kept by it."""

    def renew(self, values: Mapping[str, Numbers]) -> None:
        """Replace the numbers of some properties, for all filters from now on."""
        self.columns = {
            name: NumberColumn(kind=column.kind, values=values[name])
            if name in values and isinstance(column, NumberColumn)
            else column
            for name, column in self.columns.items()
        }
        # Last, so that no mask of the new generation is made from values of the one before.
        self.generation += 1

    @classmethod
    def of_values(
        cls, kinds: Mapping[str, PropertyKind], values: Mapping[str, Sequence[object]]
    ) -> Properties:
        """Take what items 1 .. N - 1 have, None where it is missing."""
        return cls({name: build_column(name, kind, values[name]) for name, kind in kinds.items()})

    def save(self, bundle: Path) -> None:
        """Write the columns; nothing where there are none."""
        for name, column in self.columns.items():
            column.write(bundle / FOLDER / name)

    @property
    def kinds(self) -> dict[str, PropertyKind]:
        return {name: column.kind for name, column in self.columns.items()}

    def of(self, item_row: int) -> dict[str, Shown]:
        """Return an item's properties; missing ones are left out."""
        found = {name: column.value_of(item_row) for name, column in self.columns.items()}
        return {name: value for name, value in found.items() if value is not None}

    def extended(self, more: Properties) -> Properties:
        """Append the same properties of more items; their row 0 is left out."""
        return Properties({n: old.extended(more.columns[n]) for n, old in self.columns.items()})

    def check(self, directory: Path, num_item_rows: int) -> None:
        """Check that the columns hold what they may and cover the catalogue."""
        for name, column in self.columns.items():
            path = directory / FOLDER / name
            check_rows(path, (column.num_item_rows,), (num_item_rows,))
            column.check(path)


NO_PROPERTIES = Properties({})


def build_column(name: str, kind: PropertyKind, values: Sequence[object]) -> Column:
    """Build one property of items 1 .. N - 1.

    Args:
        values: None, or of ``number`` what float() takes, of ``date`` dates, times, ISO texts or
            unix seconds, of ``boolean`` booleans or the texts true and false, of ``text`` anything
            and of ``list`` lists of anything. Numbers that are not finite, and empty texts, are
            missing.
    """
    if kind == "text":
        texts = ["" if value is None else str(value).strip() for value in values]
        table, codes = _coded(texts)
        return TextColumn(texts=table, codes=np.concatenate([[0], codes]))
    if kind == "list":
        lists = [_listed(name, value) for value in values]
        table, codes = _coded([text for one in lists for text in one])
        offsets = np.cumsum([0, 0, *map(len, lists)], dtype=np.int64)
        return ListColumn(texts=table, codes=codes, offsets=offsets)
    read = _READ[kind]
    numbers = [math.nan]
    for value in values:
        try:
            number = math.nan if value is None or value == "" else read(value)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(
                f"property {name} is a {kind} and one of the values is {str(value)[:100]!r}; "
                "mend the value or leave it empty"
            ) from None
        numbers.append(number if math.isfinite(number) else math.nan)
    return NumberColumn(kind=kind, values=np.array(numbers, np.float64))


def to_unix_seconds(value: object) -> float:
    """Turn a date, a time, their ISO text or unix seconds into unix seconds; no zone is UTC."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    if isinstance(value, datetime):
        zoned = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return zoned.timestamp()
    seconds = _number(value)
    if math.isfinite(seconds) and not YEAR_1 <= seconds < YEAR_10_000:
        raise ValueError("outside of years 1 to 9999")
    return seconds


def _number(value: object) -> float:
    if isinstance(value, bool):
        raise ValueError("a boolean is no number")
    return float(value)  # type: ignore[arg-type]


def _truth(value: object) -> float:
    found = {"true": 1.0, "false": 0.0, "1": 1.0, "0": 0.0}.get(str(value).strip().lower())
    if found is None:
        raise ValueError("neither true nor false")
    return found


_READ: dict[PropertyKind, Callable[[object], float]] = {
    "number": _number,
    "date": to_unix_seconds,
    "boolean": _truth,
}


def _listed(name: str, value: object) -> list[str]:
    """Clean one item's list: distinct texts that are not empty, in their order."""
    if value is None:
        return []
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ValueError(
            f"property {name} is a list and one of the values is {str(value)[:100]!r}; give a list"
        )
    texts = (str(one).strip() for one in value if one is not None)
    return list(dict.fromkeys(text for text in texts if text))


def _coded(texts: Sequence[str]) -> tuple[StringTable, Rows]:
    """Number the distinct texts in alphabetical order from 1; the empty one is 0."""
    distinct = sorted(set(texts) - {""})
    codes = {"": 0, **{text: code for code, text in enumerate(distinct, start=1)}}
    table = StringTable.from_strings(["", *distinct])
    return table, np.array([codes[text] for text in texts], np.int64)


def _find_codes(table: StringTable, texts: Sequence[str]) -> list[int]:
    """Find the codes of texts; those that no item has are left out."""
    return [code for text in dict.fromkeys(texts) if (code := table.row_of(text))]


def _united(texts: StringTable, more: StringTable) -> tuple[StringTable, Rows]:
    """Append the texts that are new; return the table and, for each code of ``more``, its code."""
    added: list[str] = []
    translated = np.zeros(len(more), np.int64)
    for code, text in enumerate(more):
        known = texts.row_of(text)
        if known is None:
            added.append(text)
            known = len(texts) + len(added) - 1
        translated[code] = known
    return texts.extended(added), translated


def _iso(seconds: float) -> str:
    text = datetime.fromtimestamp(seconds, UTC).isoformat()
    return text.removesuffix("T00:00:00+00:00")


def load_properties(directory: Path, manifest: BundleManifest) -> Properties:
    """Load and check the properties of a bundle, or of a delta's new items."""
    columns, files = {}, set[str]()
    for name, kind in manifest.properties.items():
        column = _COLUMNS[kind]
        columns[name] = column.read(directory / FOLDER / name, kind=kind)
        files.update(column.list_files(f"{FOLDER}/{name}"))
    present = {name for name in manifest.files if name.startswith(f"{FOLDER}/")}
    if extra := sorted(present - files):
        raise ValueError(
            f"{directory / extra[0]} is of no property that the manifest names "
            f"({', '.join(manifest.properties) or 'none'}); release the bundle again"
        )
    return Properties(columns)
