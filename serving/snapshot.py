"""Inputs of a list, as its record keeps them: features, history, every source's part.

A parity check recomputes it and names the first value that differs. It is kept of a share of the
lists (`ServingOptions.log_features_share`): it is several times as long as the rest of a record.

Axes: n items of the list, S sources, C candidates of the ranker, F features of a candidate.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from serving.query import Query
from serving.ranking import RankedItems

Rows = NDArray[np.int64]
DIGITS = 16
SHARE_DIGITS = 4
"""Digits of a list's id that decide whether it is kept; its draws start from later ones."""
NUM_SHARES = 1 << 4 * SHARE_DIGITS


def is_kept(request_id: str, share: float) -> bool:
    """Choose a share of the lists by their ids, whichever server made them."""
    return int(request_id[12 : 12 + SHARE_DIGITS], 16) < share * NUM_SHARES


def digest_of_history(rows: Rows, times: Rows | None) -> str:
    """Hash the part of a history that models read."""
    parts = [rows.astype("<i8").tobytes(), b"" if times is None else times.astype("<i8").tobytes()]
    return hashlib.sha256(b"|".join(parts)).hexdigest()[:DIGITS]


def build_snapshot(query: Query, ranked: RankedItems | None) -> Mapping[str, object]:
    """Collect the inputs of a list.

    Args:
        ranked: The list as it is shown.

    Returns:
        ``query`` with the row of each categorical feature, ``history`` with its length and digest,
        and of each item ``ranks`` and ``parts`` [n, S] by ``sources``, and ``ranker`` [n, F], None
        for an item after the ranked ones.
    """
    found: dict[str, object] = {
        "query": dict(query.categorical),
        "history": [len(query.history), digest_of_history(query.history, query.times)],
    }
    if ranked is None:
        return found
    found["sources"] = list(ranked.sources)
    found["ranks"] = ranked.ranks.tolist()
    # Arrays of float32 are written with as many digits as they need.
    found["parts"] = np.ascontiguousarray(ranked.contributions)
    if ranked.scored is not None:
        features = ranked.scored.features.numpy()
        places = {row: place for place, row in enumerate(ranked.scored.item_rows.tolist())}
        at = [places.get(row) for row in ranked.item_rows.tolist()]
        found["ranker"] = [
            None if place is None else np.ascontiguousarray(features[place]) for place in at
        ]
    return found
