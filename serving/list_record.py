"""Write the record of a served list, and for a share of the lists the inputs of their models.

A parity check recomputes the inputs and names the first value that differs. Their share is
`ServingOptions.log_features_share`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
import orjson
from numpy.typing import NDArray

from serving.items import ItemCards
from serving.online.records import record_document
from serving.query import Query
from serving.recommend import Made, Recommender

NO_ROWS: NDArray[np.int64] = np.empty(0, np.int64)
DIGITS = 16
SHARE_DIGITS = 4
"""Digits of a list's id that decide whether it is kept; its draws start from later ones."""
NUM_SHARES = 1 << 4 * SHARE_DIGITS


def write_items(cards: ItemCards, made: Made) -> tuple[list[bytes], bytes]:
    """Write the items of a reply: the beginning of each, its score and source, and the whole."""
    listed = made.listed
    ranked, sources = listed.arranged.ranked, listed.arranged.sources
    if listed.written is not None:
        return listed.written
    if ranked is None or made.query.request.explain:
        return [], orjson.dumps(made.reply.items)
    found = map(cards.json, ranked.item_rows.tolist())
    scores = orjson.dumps(ranked.scores.tolist())[1:-1].split(b",")
    names = {name: orjson.dumps(name) for name in set(sources)}
    items = zip(found, scores, sources, strict=bool(sources))
    parts = [
        (b'{"item_id":%b,"score":%b,"source":%b' % (item_id, score, names[source]), rest)
        for (item_id, rest), score, source in items
    ]
    listed.written = [begun for begun, _ in parts], b"[%b]" % b",".join(map(b"".join, parts))
    return listed.written


def write_record(recommender: Recommender, made: Made, begun: Sequence[bytes] = ()) -> bytes:
    """Write the record of a list, given the beginnings of its items by `write_items`."""
    visitor, arranged, live = made.visitor, made.listed.arranged, recommender.live
    made_of: dict[str, object] = {
        "digest": recommender.bundle.digest,
        "configuration": recommender.configuration.version,
        "unix_time": made.query.moment,
        "live": [list(event) for event in visitor.events],
        "refused": [list(event) for event in visitor.refused],
        "topics": visitor.topics or None,
        "forgotten_ms": visitor.forgotten_ms,
        "experiment": made.head.experiment,
        "rules": [rule.name for rule in made.resolved.rules],
        "seed": None if arranged.propensities is None else made.seed,
        "exclude_history": recommender.options.exclude_history,
        "hidden": live.hidden_items,
        "items_version": live.items_version if live.hidden_items is None else None,
        "shown": list(made.eligible.shown),
    }
    if is_kept(made.head.request_id, recommender.options.log_features_share):
        made_of["features"] = build_snapshot(made.query)
    if begun and arranged.propensities is None and arranged.rules is None:
        items: object = orjson.Fragment(b"[%b}]" % b"},".join(begun))
    else:
        items = _items(made)
    return record_document(made.query.request, made.head, made_of, items)


def _items(made: Made) -> list[dict[str, object]]:
    """Build a record's items with the chance and rules of each slot."""
    arranged, number = made.listed.arranged, len(made.reply.items)
    chances = arranged.propensities or (None,) * number
    rules = arranged.rules or ((),) * number
    items: list[dict[str, object]] = []
    for item, chance, names in zip(made.reply.items, chances, rules, strict=True):
        slot: dict[str, object] = {} if chance is None else {"propensity": chance}
        slot = {**slot, "rules": list(names)} if names else slot
        items.append({"item_id": item.item_id, "score": item.score, "source": item.source, **slot})
    return items


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
