"""What each item is worth, as a column of the catalogue says.

Axes: N item rows.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl
import torch
from torch import Tensor

from pipelines.inputs.item_columns import column_named

KEY = "generative_training.value_column"


def read_item_values(features: Path, column: str, num_item_rows: int) -> Tensor:
    """Read values of build_features' items, [N], NaN where there is none.

    Raises:
        ValueError: There is no such column, or it holds something else than numbers from 0 on, or
            fewer than two different ones.
    """
    items = pl.read_parquet(features / "items.parquet")
    found = column_named(items, column, f"{KEY} names {column!r}")
    is_number = found.dtype.is_numeric() or found.dtype in (pl.String, pl.Null)
    numbers = found.cast(pl.Float64, strict=False) if is_number else None
    if numbers is None or numbers.null_count() > found.null_count():
        read = (
            found.filter(numbers.is_null() & found.is_not_null()) if numbers is not None else found
        )
        raise ValueError(
            f"{KEY} = {column!r} must be numbers, got {found.dtype} such as {read[0]!r}; leave a "
            "value that is not known empty"
        )
    wrong = numbers.filter(~numbers.is_finite() | (numbers < 0))
    if len(wrong.drop_nulls()):
        raise ValueError(
            f"{KEY} = {column!r} must be finite numbers >= 0, got {wrong.drop_nulls()[0]}; leave a "
            "value that is not known empty, and shift or cut values below 0"
        )
    if numbers.drop_nulls().n_unique() < 2:
        raise ValueError(
            f"{KEY} = {column!r} has fewer than two different values, so it prefers no item; name "
            "another column, or set generative_training.alignment.rewards.value = 0"
        )
    values = torch.full((num_item_rows,), torch.nan)
    values[items["item_row"].to_torch()] = numbers.fill_null(torch.nan).to_torch().float()
    return values
