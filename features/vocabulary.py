"""Ids to dense rows: append-only, row 0 means padding or unknown and is not stored.

A vocabulary that grows keeps every row it has given out, so that models and published bundles
stay valid; new ids follow in ascending order.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray


def extended(ids: pl.Series, previous: pl.Series | None = None) -> pl.Series:
    """List the ids by row: ``previous`` as it is, then the new ones in ascending order.

    The id at place i has row i + 1. Duplicates and nulls are left out.
    """
    unique = ids.drop_nulls().unique().sort().cast(pl.String).alias("id")
    if previous is None:
        return unique
    new = unique.filter(~unique.is_in(previous.implode()))
    return pl.concat([previous.alias("id"), new])


def rows_of(ids: pl.Series, vocabulary: pl.Series) -> NDArray[np.int64]:
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
    """Read the ids by row.

    Raises:
        ValueError: If rows are missing or out of order.
    """
    table = pl.read_parquet(path, columns=["row", "id"])
    if not table["row"].equals(pl.Series("row", range(1, table.height + 1), dtype=pl.Int64)):
        raise ValueError(
            f"{path}: rows must run from 1 without gaps; restore the file or delete it"
        )
    return table["id"]
