"""Users who were away for longer than nearly all who came back.

A blend judged by time learns what users want now, nearly all of whom were here lately. Of a user
who was not, it has hardly any query to learn from, and what others want lately says little: items'
demand and the list of what is popular do not count then, the user's own history alone does.

Axes: B queries, E events.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from recsys.data.dataset import Rows, Sequences
from recsys.data.top_k import OneList, TopK
from recsys.models.names import POPULARITY
from recsys.retrieval.blend.demand import DAY, LAPSED

LAPSED_SHARE, MIN_QUERIES = 0.05, 50
"""Share of validation's users, those who were away longest, whose absence is too rare to learn
from; and the fewest queries that show it."""


def days_away(sequences: Sequences, positions: Rows) -> Tensor | None:
    """Count the days from each query's last event to the end of train, [B]; 0 without a history.

    None without times, or if some held-out events are not after that end: then validation
    is of each user's last events, and tells nothing of absences.
    """
    if sequences.times is None or len(positions) == 0:
        return None
    seen = sequences.times[sequences.positions_before(sequences.visible_end("train"))]
    now = int(seen.max(initial=0))
    if int(sequences.times[positions].min()) <= now:
        return None
    is_first = positions == sequences.offsets[sequences.users_of(positions)]
    last = np.asarray(sequences.times[np.maximum(positions - 1, 0)])
    return torch.from_numpy(np.where(is_first, 0.0, (now - last) / DAY))


def longest_absence(days: Tensor | None) -> float | None:
    """Return the days away that all but a few of these queries do not exceed; None of too few."""
    if days is None or len(days) < MIN_QUERIES:
        return None
    return float(days.quantile(1 - LAPSED_SHARE)) or None


def of_their_own(
    lists: Mapping[str, TopK], history_lengths: Tensor, is_lapsed: Tensor, k: int
) -> tuple[dict[str, TopK], Tensor]:
    """Take the popular list and the length of the history away from queries of lapsed users.

    Args:
        lists: By source, [B, k_s] each.
        history_lengths: [B].
        is_lapsed: [B] bool.
        k: Places that the others must fill without it.
    """
    others = [(top.item_rows > 0).sum(1) for name, top in lists.items() if name != POPULARITY.name]
    if not others or not bool(is_lapsed.any()):
        return dict(lists), history_lengths
    lapsed = is_lapsed & (torch.stack(others).amax(0) >= k)
    found = dict(lists)
    if POPULARITY.name in found:
        scores, rows = found[POPULARITY.name]
        gone = lapsed[:, None]
        found[POPULARITY.name] = TopK(
            scores.masked_fill(gone, -torch.inf), rows.masked_fill(gone, -1)
        )
    return found, history_lengths.masked_fill(lapsed, LAPSED)


def one_of_their_own(
    lists: Mapping[str, OneList], num_events: int, k: int
) -> tuple[dict[str, OneList], int]:
    """Do the same for the one query of a lapsed user."""
    own = {name: one for name, one in lists.items() if name != POPULARITY.name}
    if max((len(one.item_rows) for one in own.values()), default=0) < k:
        return dict(lists), num_events
    return own, LAPSED
