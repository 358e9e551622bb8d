"""The board of time-to-split (arXiv 2507.16289): the last event after a moment is asked.

Its repository, monkey0head/time-to-split, cuts at quantiles of the events' times (`src/splits.py`)
and asks each user's last event with all before it given, whenever these were (`src/prepr.py`).

Axes: U user rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from recsys.data.dataset import Rows, Sequences

QUANTILE = 0.9
"""Share of the events up to the begin of test, and of those up to the begin of validation."""
MIN_EVENTS = 2
"""Users with fewer up to a cut are not in train there."""


def cut_at_quantiles(sequences: Sequences, quantile: float = QUANTILE) -> Sequences:
    """End train and validation of all users at the board's two moments.

    Raises:
        ValueError: The events have no times.
    """
    if sequences.times is None:
        raise ValueError("time-to-split cuts by time and these events have none; take another card")
    times, owners = sequences.times, sequences.users_of(np.arange(sequences.num_events))
    validation_end = _train_end(times <= np.quantile(times, quantile), owners, sequences)
    is_early = np.arange(sequences.num_events) < validation_end[owners]
    moment = np.quantile(times[is_early], quantile)
    train_end = _train_end(is_early & (times <= moment), owners, sequences)
    return replace(sequences, train_end=train_end, validation_end=validation_end)


def _train_end(is_before: NDArray[np.bool_], owners: Rows, sequences: Sequences) -> Rows:
    """Return the end of each user's events before a moment, [U]; of one event, the user's begin."""
    counts = np.bincount(owners[is_before], minlength=sequences.num_user_rows)
    ends: Rows = sequences.offsets[:-1] + np.where(counts < MIN_EVENTS, 0, counts)
    return ends


def last_held_out(sequences: Sequences, split: Literal["validation", "test"]) -> Sequences:
    """Hold out each user's last event of a split alone; its earlier ones become history."""
    if split == "validation":
        end = sequences.validation_end
        return replace(sequences, train_end=np.maximum(sequences.train_end, end - 1))
    end = sequences.offsets[1:]
    return replace(sequences, validation_end=np.maximum(sequences.validation_end, end - 1))
