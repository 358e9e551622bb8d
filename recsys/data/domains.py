"""The labels of one domain among sequences that may wander through several.

An event belongs to the domain of its item. A model of a domain reads whole histories, as it will
when it serves, but learns from the domain's events only.

Axes: E events, N item rows, W windows, B windows of a batch, P positions.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.dataset import Rows, Sequences, Split
from recsys.data.windows import Windows, window_batch

Mask = NDArray[np.bool_]


def domain_positions(sequences: Sequences, split: Split, own_items: Mask) -> Rows:
    """List the labels of a split that are items of a domain, ascending, [P].

    Args:
        own_items: Whether each item row is of the domain, [N].
    """
    positions = sequences.label_positions(split)
    kept: Rows = positions[own_items[np.asarray(sequences.item_rows[positions])]]
    return kept


def domain_windows(sequences: Sequences, windows: Windows, own_items: Mask) -> Windows:
    """Keep the windows with a label of a domain; a window's first event is no label."""
    own = own_items[np.asarray(sequences.item_rows)]  # [E]
    before = np.concatenate([[0], np.cumsum(own)])
    counts = before[windows.ends] - before[windows.starts + 1]  # [W]
    return Windows(windows.starts[counts > 0], windows.ends[counts > 0])


def domain_window_batch(
    sequences: Sequences, starts: Rows, ends: Rows, own_items: Mask
) -> JaggedBatch:
    """Read windows as ``window_batch`` does, and ``history.counted``: 1 for the domain's events."""
    batch = window_batch(sequences, starts, ends)
    history = batch["history"]
    counted = torch.from_numpy(own_items)[history.values].long()
    features: Mapping[str, Jagged] = {
        **batch.features,
        "history.counted": history._replace(values=counted),
    }
    return JaggedBatch(features)
