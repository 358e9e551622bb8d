"""Columns of a catalogue as numbers that join the vectors of its text.

A number or a date becomes a piecewise-linear encoding over the quantiles of the catalogue
(Gorishniy et al. 2022, arXiv:2203.05556), a category one column a value, a list one a member, a
vector stays as it is. A model that projects content linearly then has an embedding of each value.
A missing value is a value of its own: a column that says so. The values of a catalogue are kept
as plain JSON, so that new items are encoded as the old ones were.

Axes: n items, D width, T parts of a number.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, time
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
Numbers = NDArray[np.float64]
Kind = Literal["number", "date", "category", "list", "vector"]
KINDS: tuple[Kind, ...] = get_args(Kind)
NUM_PARTS = 16
"""Parts of a number's range, of about equally many items each."""
MAX_VALUES = 512
"""Most frequent values of a category or list with a column of their own."""
MIN_ITEMS = 2
"""Items that a value must have for it."""
MAX_WIDTH = 4096
"""Most numbers of a vector."""
SECONDS_PER_DAY = 86_400
LIST_SEPARATOR = "|"


@dataclass(frozen=True, kw_only=True)
class EncodedColumn:
    """How one column is encoded; fitted once, plain JSON."""

    name: str
    kind: Kind
    edges: tuple[float, ...] = ()
    """[T + 1], increasing, of a number or date; empty where all are missing."""
    mean: tuple[float, ...] = ()
    """[T] of the encodings of the catalogue, taken off."""
    values: tuple[str, ...] = ()
    """Values of a category or list with a column of their own; all others share one."""
    width: int = 0
    """Numbers of a vector."""
    scale: float = 1.0
    """Brings a vector or number to the mean square length 1."""

    @property
    def dim(self) -> int:
        """Columns of the encoding, the last of which says that the value is missing."""
        if self.kind in ("category", "list"):
            return len(self.values) + 2
        return (self.width if self.kind == "vector" else len(self.mean)) + 1

    @classmethod
    def fit(cls, name: str, kind: Kind, column: Sequence[Any]) -> EncodedColumn:
        """Look at the values of all items."""
        if kind in ("category", "list"):
            return cls(name=name, kind=kind, values=frequent(members(name, kind, column)))
        if kind == "vector":
            width = common_width(name, column)
            rows = as_vectors(name, column, width)
            known = rows[~np.isnan(rows[:, 0])]
            return cls(name=name, kind=kind, width=width, scale=to_unit(known))
        numbers = as_numbers(name, kind, column)
        known = numbers[~np.isnan(numbers)]
        if len(known) == 0:
            return cls(name=name, kind=kind)
        edges = np.unique(np.quantile(known, np.linspace(0, 1, NUM_PARTS + 1)))
        if len(edges) == 1:
            edges = np.array([edges[0] - 1.0, edges[0]])
        parts = piecewise(known, edges)
        mean = parts.mean(0)
        scale = to_unit(parts - mean)
        return cls(
            name=name, kind=kind, edges=tuple(edges.tolist()), mean=tuple(mean.tolist()),
            scale=scale,
        )  # fmt: skip

    def encode(self, column: Sequence[Any]) -> Vectors:
        """Encode items' values, [n, D]."""
        encoded = np.zeros((len(column), self.dim), np.float32)
        if self.kind in ("category", "list"):
            place = {value: at for at, value in enumerate(self.values)}
            other = len(self.values)
            for row, found in enumerate(members(self.name, self.kind, column)):
                if not found:
                    encoded[row, -1] = 1.0
                    continue
                taken = {place.get(value, other) for value in found}
                encoded[row, sorted(taken)] = 1.0 / math.sqrt(len(taken))
            return encoded
        if self.kind == "vector":
            rows = as_vectors(self.name, column, self.width)
            missing = np.isnan(rows[:, 0])
        else:
            numbers = as_numbers(self.name, self.kind, column)
            missing = np.isnan(numbers)
            edges = np.array(self.edges)
            known = np.where(missing, 0.0, numbers)
            rows = piecewise(known, edges) - np.array(self.mean)
        encoded[:, :-1] = np.where(missing[:, None], 0.0, rows * self.scale)
        encoded[:, -1] = missing
        return encoded


@dataclass(frozen=True)
class ColumnEncoder:
    """All columns side by side."""

    columns: tuple[EncodedColumn, ...]
    weight: float = 1.0
    """Length of each column's part, about; that of a text's vector is 1."""

    @property
    def dim(self) -> int:
        return sum(one.dim for one in self.columns)

    def encode(self, table: Mapping[str, Sequence[Any]], num_items: int) -> Vectors:
        """Encode items, [n, D]; one that all columns lack is zeros."""
        nothing: list[None] = [None] * num_items
        parts = [one.encode(table.get(one.name, nothing)) for one in self.columns]
        if not parts:
            return np.zeros((num_items, 0), np.float32)
        whole = np.concatenate(parts, axis=1)
        lacking = np.all([part[:, -1] == 1.0 for part in parts], axis=0)
        whole[lacking] = 0.0
        return whole * np.float32(self.weight)

    def document(self) -> list[dict[str, Any]]:
        """Describe the columns as plain JSON."""
        described: list[dict[str, Any]] = json.loads(json.dumps([asdict(c) for c in self.columns]))
        return described

    @classmethod
    def of(cls, document: Sequence[Mapping[str, Any]], weight: float) -> ColumnEncoder:
        """Read what ``document`` gave."""
        columns = []
        for one in document:
            fields: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value
                for name, value in one.items()
            }
            columns.append(EncodedColumn(**fields))
        return cls(tuple(columns), weight)


def piecewise(numbers: Numbers, edges: Numbers) -> Numbers:
    """Encode numbers over their parts, [n] -> [n, T]: 1 below a number, 0 above, between within."""
    if len(edges) < 2:
        return np.zeros((len(numbers), 0))
    encoded: Numbers = np.clip((numbers[:, None] - edges[:-1]) / np.diff(edges), 0.0, 1.0)
    return encoded


def to_unit(rows: Numbers) -> float:
    """Find the factor that brings rows to the mean square length 1."""
    square = float((rows**2).sum(1).mean()) if len(rows) else 0.0
    return 1.0 / math.sqrt(square) if square > 0 else 1.0


def frequent(lists: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """List the values of at least ``MIN_ITEMS`` items, the most frequent first."""
    counts = Counter(value for one in lists for value in set(one))
    found = sorted((-count, value) for value, count in counts.items() if count >= MIN_ITEMS)
    return tuple(value for _, value in found[:MAX_VALUES])


def wrong(name: str, kind: str, row: int, value: object) -> ValueError:
    """Return which value is not of its column's kind."""
    return ValueError(
        f"column {name} is a {kind}, but value {row + 1} is {str(value)[:60]!r}; mend it, leave it "
        f"empty (a missing value is fine), or take {name} out of content.columns"
    )


def members(name: str, kind: Kind, column: Sequence[Any]) -> list[list[str]]:
    """Read each item's values as texts; none where it is missing."""
    found: list[list[str]] = []
    for row, value in enumerate(column):
        if isinstance(value, str):
            several = value.split(LIST_SEPARATOR) if kind == "list" else [value]
        elif kind == "list" and isinstance(value, (list, tuple)):
            several = [str(one) for one in value if one is not None]
        elif isinstance(value, (list, tuple, dict)):
            raise wrong(name, kind, row, value)
        elif isinstance(value, bool):
            several = [str(value).lower()]
        else:
            several = [] if value is None else [str(value)]
        found.append([text for one in several if (text := one.strip())])
    return found


def as_numbers(name: str, kind: Kind, column: Sequence[Any]) -> Numbers:
    """Read numbers, or dates as days since 1970; NaN where one is missing."""
    numbers = np.full(len(column), np.nan)
    for row, value in enumerate(column):
        if value is None or (isinstance(value, str) and not value.strip()):
            continue
        try:
            numbers[row] = day_of(value) if kind == "date" else float(value)
        except (TypeError, ValueError):
            raise wrong(name, kind, row, value) from None
        if math.isinf(numbers[row]):
            raise wrong(name, kind, row, value)
    return numbers


def day_of(value: object) -> float:
    """Read a date or ISO text as days since 1970; without a zone it is UTC."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value.strip())
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time(), UTC)
    if not isinstance(value, datetime):
        raise TypeError
    return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp() / SECONDS_PER_DAY


def common_width(name: str, column: Sequence[Any]) -> int:
    """Find the width of all vectors of a column."""
    read = (read_vector(name, row, value) for row, value in enumerate(column))
    widths = {len(one) for one in read if one is not None}
    if len(widths) > 1:
        raise ValueError(
            f"column {name} holds vectors of {sorted(widths)[:4]} numbers; all must have the same "
            "width. Mend the file, or leave a row's vector empty"
        )
    width = min(widths, default=0)
    if not 0 < width <= MAX_WIDTH:
        raise ValueError(
            f"column {name} holds vectors of {width} numbers, allowed are 1 to {MAX_WIDTH}"
        )
    return width


def read_vector(name: str, row: int, value: Any) -> Numbers | None:
    """Read one vector, also one written as JSON; None where it is missing."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    try:
        read: Numbers = np.array(json.loads(value) if isinstance(value, str) else value, float)
    except (TypeError, ValueError):
        raise wrong(name, "vector", row, value) from None
    if read.ndim != 1:
        raise wrong(name, "vector", row, value)
    if not np.isfinite(read).all():
        raise ValueError(
            f"column {name}: value {row + 1} holds NaN or infinity; mend it, or leave the whole "
            "vector empty"
        )
    return read


def as_vectors(name: str, column: Sequence[Any], width: int) -> Numbers:
    """Read vectors, [n, width]; a row of NaN where one is missing."""
    rows = np.full((len(column), width), np.nan)
    for row, value in enumerate(column):
        read = read_vector(name, row, value)
        if read is None:
            continue
        if len(read) != width:
            raise ValueError(
                f"column {name}: value {row + 1} has {len(read)} numbers, the others have {width}; "
                "mend it, or leave it empty"
            )
        rows[row] = read
    return rows
