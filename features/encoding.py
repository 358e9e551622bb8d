"""External ids to integer codes and dense rows.

Codes count from 0 in the order of first appearance and last for one build, in one pass over the
data and without holding it. Rows are what an artefact keeps: row 0 means padding or unknown and is
not stored. A vocabulary that grows keeps every row it has given out, so that models and published
bundles stay valid; new ids follow in ascending order.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

Codes = NDArray[np.uint32]

MISSING = np.uint32(0xFFFFFFFF)
MAX_ID_CHARS = 512
"""As in the API's requests."""
_ID_REASONS = (
    "{} is missing",
    "{} holds a NUL character",
    f"{{}} is longer than {MAX_ID_CHARS} characters",
    "{} is not a number (NaN)",
)


def _id_reason() -> pl.Expr:
    """Return the fault of an id: a place in _ID_REASONS from 1, or 0 for none, uint8.

    An id is an opaque text, but for what programs write for a missing one: blanks, nan, NaN.
    """
    text = pl.col("id")
    rules = [
        (text.str.strip_chars() == ""),
        text.str.contains("\x00", literal=True),
        text.str.len_chars() > MAX_ID_CHARS,
        text.is_in(["nan", "NaN"]),
    ]
    code = pl.lit(0, dtype=pl.UInt8)
    for place, wrong in reversed(list(enumerate(rules, start=1))):
        code = pl.when(wrong).then(pl.lit(place, dtype=pl.UInt8)).otherwise(code)
    return code


class Dictionary:
    """Texts of one column and their codes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dtype = pl.Categorical(pl.Categories(f"{name}-{uuid.uuid4()}"))
        # Polars forgets categories that no series refers to.
        self._keep = pl.Series([], dtype=self.dtype)
        self.size = 0
        self._reasons: NDArray[np.uint8] = np.zeros(0, np.uint8)

    def encode(self, texts: pl.Series) -> Codes:
        """Code each text, MISSING for null; texts not seen before get the next codes."""
        coded = texts.cast(self.dtype)
        self._keep = coded.head(1)
        codes: Codes = coded.to_physical().fill_null(int(MISSING)).to_numpy()
        present = codes if not coded.null_count() else codes[codes != MISSING]
        if len(present):
            self.size = max(self.size, int(present.max()) + 1)
        return codes

    def texts(self, codes: Codes | None = None) -> pl.Series:
        """Return the texts of codes, by default of all in order."""
        wanted = np.arange(self.size, dtype=np.uint32) if codes is None else codes
        return pl.Series("id", wanted).cat.to(self.dtype).cast(pl.String)

    def reason_codes(self, codes: Codes) -> NDArray[np.uint8]:
        """Return the fault of each code's id, 0 for none; checked once an id."""
        known = len(self._reasons)
        if self.size > known:
            fresh = self.texts(np.arange(known, self.size, dtype=np.uint32)).to_frame()
            reasons = fresh.select(_id_reason()).to_series().to_numpy()
            self._reasons = np.concatenate([self._reasons, reasons])
        with_missing = np.append(self._reasons, np.uint8(1))
        found: NDArray[np.uint8] = with_missing[np.minimum(codes, len(self._reasons))]
        return found

    def reason(self, code: int) -> str:
        return _ID_REASONS[code - 1].format(self.name)


def hashed(values: NDArray[Any], seed: int) -> NDArray[np.uint64]:
    """Mix integers into uniformly spread ones (splitmix64)."""
    with np.errstate(over="ignore"):
        mixed = values.astype(np.uint64) + np.uint64(seed + 1) * np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        return mixed ^ (mixed >> np.uint64(31))


def extended(ids: pl.Series, previous: pl.Series | None = None) -> pl.Series:
    """List the ids by row: ``previous`` as it is, then the new ones in ascending order.

    The id at place i has row i + 1. Duplicates and nulls are left out.
    """
    unique = ids.drop_nulls().unique().sort().cast(pl.String).alias("id")
    if previous is None:
        return unique
    new = unique.filter(~unique.is_in(previous.implode()))
    return pl.concat([previous.alias("id"), new])


def find_rows(ids: pl.Series, vocabulary: pl.Series) -> NDArray[np.int64]:
    """Look up each id's row, 0 where the vocabulary does not have it."""
    table = pl.DataFrame({"id": vocabulary}).with_row_index("row", offset=1)
    found = ids.to_frame("id").join(table, on="id", how="left", maintain_order="left")
    return found["row"].fill_null(0).cast(pl.Int64).to_numpy()


def write_vocabulary(vocabulary: pl.Series, path: Path) -> None:
    """Write columns ``row`` (from 1) and ``id``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pl.DataFrame({"id": vocabulary}).with_row_index("row", offset=1)
    table.select(pl.col("row").cast(pl.Int64), "id").write_parquet(path)


def read_vocabulary(path: Path) -> pl.Series:
    """Read the ids by row."""
    table = pl.read_parquet(path, columns=["row", "id"])
    if not table["row"].equals(pl.Series("row", range(1, table.height + 1), dtype=pl.Int64)):
        raise ValueError(
            f"{path}: rows must run from 1 without gaps; restore the file or delete it"
        )
    return table["id"]
