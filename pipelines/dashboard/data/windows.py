"""Windows of long tables whose columns are arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.pages.document import Window

Ints = NDArray[np.int64]


def window_rows(
    kept: Ints, columns: Sequence[NDArray[Any] | pl.Series], window: Window, default: int
) -> Ints:
    """Return the rows of a window, ordered by a column; NaN comes last.

    Args:
        kept: Rows that filters and search leave, ascending.
        columns: Values of all rows, by column.
        default: Column that orders without a choice, descending.
    """
    named = window.order_by is not None and window.order_by < len(columns)
    descending = window.descending or not named
    column = columns[(window.order_by or 0) if named else default]
    values = column.gather(kept).rank("dense") if isinstance(column, pl.Series) else column[kept]
    key = np.asarray(values, np.float64)
    key = np.where(np.isnan(key), np.inf, -key if descending else key)
    order = np.argsort(key, kind="stable")
    return kept[order[window.start : window.start + window.length]]
