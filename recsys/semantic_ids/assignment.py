"""Optimal one-to-one matching of two sets of the same size (Jonker and Volgenant 1987).

Shortest augmenting paths with potentials, exact, O(K^3); the inner loop is one numpy line over all
columns.

Axes: K rows and columns.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def best_matching(gain: NDArray[np.float64]) -> NDArray[np.int64]:
    """Match each row with a column of its own so that the summed gain is largest.

    Args:
        gain: [K, K], finite.

    Returns:
        Column of each row, [K].

    Raises:
        ValueError: Not square, or not finite.
    """
    if gain.ndim != 2 or gain.shape[0] != gain.shape[1] or not np.isfinite(gain).all():
        raise ValueError(f"gain {gain.shape} must be a square matrix of finite numbers")
    size = len(gain)
    cost = (gain.max() - gain if size else gain).astype(np.float64)
    column_price = cost.min(0) if size else np.zeros(0)
    row_price = (cost - column_price).min(1) if size else np.zeros(0)
    column_of = np.full(size, -1)
    row_of = np.full(size, -1)
    # Most rows have a cheapest column that nobody else claims: no search is needed for them.
    for row, column in enumerate((cost - column_price).argmin(1)):
        if row_of[column] < 0:
            row_of[column], column_of[row] = row, column
    for waiting in np.flatnonzero(column_of < 0):
        _augment(int(waiting), cost, row_price, column_price, row_of, column_of)
    return column_of


def _augment(
    start: int,
    cost: NDArray[np.float64],
    row_price: NDArray[np.float64],
    column_price: NDArray[np.float64],
    row_of: NDArray[np.int64],
    column_of: NDArray[np.int64],
) -> None:
    """Match one more row along the shortest path to a free column; changes all but ``cost``."""
    size = len(cost)
    shortest = np.full(size, np.inf)
    came_from = np.full(size, -1)
    open_columns = np.ones(size, dtype=bool)
    row, length = start, 0.0
    seen_rows = []
    while True:
        seen_rows.append(row)
        path = length + cost[row] - row_price[row] - column_price
        better = open_columns & (path < shortest)
        shortest[better], came_from[better] = path[better], row
        column = int(np.where(open_columns, shortest, np.inf).argmin())
        length = float(shortest[column])
        open_columns[column] = False
        if row_of[column] < 0:
            break
        row = int(row_of[column])
    closed = np.flatnonzero(~open_columns)
    for seen in seen_rows:
        own = column_of[seen]
        row_price[seen] += length - (0.0 if seen == start else float(shortest[own]))
    column_price[closed] += shortest[closed] - length
    while True:
        row = int(came_from[column])
        row_of[column], column_of[row], column = row, column, int(column_of[row])
        if row == start:
            return
