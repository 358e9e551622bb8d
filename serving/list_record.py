"""Write the record of a served list, and for a share of the lists the inputs of their models.

A parity check recomputes the inputs and names the first value that differs. Their share is
`ServingOptions.log_features_share`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from serving.online.records import record_document
from serving.query import Query
from serving.recommend import Made, Recommender

NO_ROWS: NDArray[np.int64] = np.empty(0, np.int64)
DIGITS = 16
SHARE_DIGITS = 4
"""Digits of a list's id that decide whether it is kept; its draws start from later ones."""
NUM_SHARES = 1 << 4 * SHARE_DIGITS


def write_record(recommender: Recommender, made: Made) -> bytes:
    """Write the record of a list."""
    visitor, arranged, live = made.visitor, made.arranged, recommender.live
    made_of: dict[str, object] = {
        "digest": recommender.bundle.digest,
        "configuration": recommender.configuration.version,
        "unix_time": made.query.moment,
        "live": [list(event) for event in visitor.events],
        "refused": [list(event) for event in visitor.refused],
        "topics": visitor.topics or None,
        "forgotten_ms": visitor.forgotten_ms,
        "experiment": made.reply.experiment,
        "rules": [rule.name for rule in made.resolved.rules],
        "seed": None if arranged.propensities is None else made.seed,
        "exclude_history": recommender.options.exclude_history,
        "hidden": live.hidden_items,
        "items_version": live.items_version if live.hidden_items is None else None,
        "shown": list(made.eligible.shown),
    }
    if is_kept(made.reply.request_id, recommender.options.log_features_share):
        made_of["features"] = build_snapshot(made.query)
    return record_document(made.query.request, made.reply, made_of, _slots(made))


def _slots(made: Made) -> list[dict[str, object]]:
    """Build a record's further fields of each slot: chance and rules."""
    arranged, number = made.arranged, len(made.reply.items)
    chances = arranged.propensities or (None,) * number
    rules = arranged.rules or ((),) * number
    slots: list[dict[str, object]] = []
    for chance, names in zip(chances, rules, strict=True):
        slot: dict[str, object] = {} if chance is None else {"propensity": chance}
        slots.append({**slot, "rules": list(names)} if names else slot)
    return slots


def is_kept(request_id: str, share: float) -> bool:
    """Choose a share of the lists by their ids, whichever server made them."""
    return int(request_id[12 : 12 + SHARE_DIGITS], 16) < share * NUM_SHARES


def build_snapshot(query: Query) -> Mapping[str, object]:
    """Collect the inputs of a list.

    Returns:
        ``query`` with the row of each categorical feature, ``history`` with its length and digest.
    """
    arrays = (query.history, NO_ROWS if query.times is None else query.times, query.types)
    content = b"|".join(rows.astype("<i8").tobytes() for rows in arrays if rows is not None)
    history = [len(query.history), hashlib.sha256(content).hexdigest()[:DIGITS]]
    return {"query": dict(query.categorical), "history": history}
