"""A shop whose visitors click by known rates, served by a real recommender that explores."""

import zlib

import numpy as np

from pipelines.inputs.online_events import export_events, export_requests
from serving.configuration.file import check_configuration
from serving.list_record import write_record
from serving.online.events import Event
from serving.online.sqlite_store import SqliteStore
from serving.online.store import RequestRecord
from serving.recommend import Recommender
from serving.schemas import Request

START_MS = 1_760_000_000_000
EXPLORING = {"exploration": {"method": "epsilon", "epsilon": 0.5}}
DISCOUNT = 0.7
K = 4


def rate(item_id, slot=0):
    """Chance of a click on an item in a slot."""
    return (0.02 + 0.4 * (zlib.crc32(item_id.encode()) % 100 / 100) ** 2) * DISCOUNT**slot


def serve(bundle, folder, number=400, surface=None, *, users=30, seed=0):
    """Serve lists, click, and export; returns the folder of the export."""
    table = {"surfaces": {"home": surface or EXPLORING}}
    recommender = Recommender(bundle, configuration=check_configuration(table))
    store, random = SqliteStore(folder / "online"), np.random.default_rng(seed)
    now_ms = START_MS
    for place in range(number):
        now_ms += 60_000
        user_id = f"user-{random.integers(1, users + 1)}" if place % 10 else None
        request = Request(user_id=user_id, k=K)
        visitor = store.visitor(user_id, 200)
        made = recommender.make(request, now_ms=now_ms, visitor=visitor, seed=place)
        store.add_requests([_record(recommender, made, now_ms)])
        store.add_events(list(_clicks(made, user_id, now_ms, random)))
    out = folder / "exported"
    export_events(store, out)
    export_requests(store, out, now_ms + 10_000_000)
    store.close()
    return out


def _record(recommender, made, now_ms):
    reply = made.reply
    return RequestRecord(
        reply.request_id, now_ms, made.query.request.user_id, write_record(recommender, made)
    )


def _clicks(made, user_id, now_ms, random):
    for slot, item in enumerate(made.reply.items):
        for event_type in ("impression", "click"):
            if event_type == "click" and random.random() >= rate(item.item_id, slot):
                continue
            yield Event(
                event_id=f"{made.reply.request_id}-{slot}-{event_type}",
                user_id=user_id or "nobody",
                item_id=item.item_id,
                event_type=event_type,
                time_ms=now_ms + 1_000,
                received_ms=now_ms + 2_000,
                request_id=made.reply.request_id,
                slot=slot + 1,
            )
