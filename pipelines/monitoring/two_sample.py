"""The classifier two-sample test on events: does a regression separate a day from the window?"""

from __future__ import annotations

import zlib
from math import log, sqrt
from typing import NamedTuple

import numpy as np
import polars as pl

from pipelines.monitoring.sketch import UNKNOWN
from recsys.evaluation.drift import two_sample_auc

MAX_LEVELS = 12
"""Categories of a column that the regression reads, those most frequent in the window."""
MIN_EXAMPLES = 50


class Tested(NamedTuple):
    """Area under the curve, its log odds, and their standard error."""

    value: float
    score: float
    noise: float


def two_sample(day: pl.DataFrame, window: pl.DataFrame, max_examples: int) -> Tested | None:
    """Fit and score; None for too few events of either."""
    if min(day.height, window.height) < MIN_EXAMPLES:
        return None
    day = day.head(max_examples)
    window = window.sample(min(max_examples, window.height), seed=0)
    both = pl.concat([day, window], how="diagonal_relaxed")
    x = numbers_of(both, window)
    folds = np.array([zlib.crc32(one.encode()) & 1 for one in both["user_id"].to_list()])
    size = day.height
    area = two_sample_auc(x[:size], x[size:], folds[:size], folds[size:])
    if not np.isfinite(area):
        return None
    area = min(max(area, 1e-3), 1 - 1e-3)
    users = min(day["user_id"].n_unique(), window["user_id"].n_unique())
    return Tested(area, log(area / (1 - area)), 1 / sqrt(users))


def levels_of(column: pl.Series, window: pl.Series) -> list[np.ndarray]:
    """Give 0 or 1 for each frequent value; of what is unknown, as of new users, the usual share."""
    known = window.filter(window != UNKNOWN)
    if known.is_empty():
        return []
    counts = known.value_counts(sort=True, name="count").head(MAX_LEVELS)
    unknown = (column == UNKNOWN).fill_null(value=True).to_numpy()
    return [
        np.where(unknown, count / len(known), (column == level).fill_null(value=False).to_numpy())
        for level, count in counts.iter_rows()
    ]


def numbers_of(rows: pl.DataFrame, window: pl.DataFrame) -> np.ndarray:
    """Encode events as numbers, [E, F]: hour of the day, value, and 0 or 1 for each category."""
    seconds = rows["event_time"].dt.epoch("s").fill_null(0).to_numpy() % 86_400
    angle = 2 * np.pi * seconds / 86_400
    value = rows["value"].fill_null(0.0).fill_nan(0.0).to_numpy()
    columns = [
        np.sin(angle),
        np.cos(angle),
        np.sign(value) * np.log1p(np.abs(value)),
        (rows["value"].is_not_null()).to_numpy().astype(float),
    ]
    skipped = {"user_id", "item_id", "hour", "value_bin"}
    for name, kind in rows.schema.items():
        if kind != pl.String() or name in skipped or name not in window.columns:
            continue
        columns += levels_of(rows[name], window[name])
    return np.stack(columns, axis=1)
