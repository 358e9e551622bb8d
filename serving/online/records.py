"""Records of served lists: request, history, items with sources and chances.

One schema for explanations, parity checks, off-policy evaluation and dashboards. A record is the
JSON of

    request_id, unix_ms, bundle, digest, profile, adapter?, ranker?
    request        what the client sent, defaults left out but for k
    unix_time      unix seconds as of which features were computed
    live           [[item_id, event_type, unix ms], ...] the store's events that were read
    refused?       the same of hides and dislikes in force
    topics?        JSON of the topics that the user said
    forgotten_ms?  when the user was forgotten
    items          [{item_id, score, source, propensity?, rules?}, ...] in slots from 1
    degraded       codes; fallback? the source of the whole list
    timings_ms     milliseconds by stage and in total, without the wait for a worker
    configuration  version of the serving configuration; rules? names of those in force
    experiment?    {name, arm}; seed? of what was drawn, where anything was
    exclude_history?  as the server was set; hidden? items that were (items_version? where
                   they are many); shown? items left out because the user was shown them lately
    features?      of a share of the lists, what they were computed from: serving/list_record.py

with fields that are not there left out.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from serving.online.store import RequestRecord, time_of
from serving.schemas import Reply, Request

ID_START = b'{"request_id":"'
ID_LENGTH = 32
BUNDLE = b',"bundle":'
"""Follows the columns in a record; a text in JSON has no quotation mark without a backslash."""
DEFAULTS = Request()


def record_document(
    request: Request, reply: Reply, made_of: Mapping[str, object], items: object
) -> bytes:
    """Write a record's JSON.

    Args:
        made_of: ``digest``, ``unix_time``, ``live`` and so on; None and empty values are left out.
        items: What each slot has, as a value for JSON.
    """
    served = reply.served_by
    document: dict[str, object] = {
        "request_id": reply.request_id,
        "unix_ms": time_of(reply.request_id),
        "user_id": request.user_id,
        "bundle": served.bundle,
        "profile": served.profile,
        "adapter": served.adapter,
        "ranker": served.ranker,
        "surface": request.surface,
        # A surface has its own k: that of the request is not a default that it may take back.
        "request": {"k": request.k, **_sent(request)},
        "items": items,
        "degraded": [what.code for what in reply.degraded],
        "fallback": reply.fallback,
        "timings_ms": reply.timings_ms,
        **made_of,
    }
    kept = {name: value for name, value in document.items() if value is not None and value != []}
    return orjson.dumps(kept, option=orjson.OPT_SERIALIZE_NUMPY)


def _sent(request: Request) -> Mapping[str, object]:
    """Collect the fields that were sent and are no default."""
    names = request.model_fields_set
    if type(request) is not Request or "filter" in names or "context" in names:
        return request.model_dump(mode="json", include=names, exclude_defaults=True)
    values = ((name, getattr(request, name)) for name in names)
    return {name: value for name, value in values if value != getattr(DEFAULTS, name)}


def record_of(document: bytes) -> RequestRecord:
    """Read the columns of a record from its JSON, of which they are the first fields."""
    head, found, _ = document.partition(BUNDLE)
    first = orjson.loads(head + b"}" if found else document)
    return RequestRecord(first["request_id"], first["unix_ms"], first.get("user_id"), document)


def items_of(document: bytes) -> list[str]:
    """List the items of a record."""
    return [item["item_id"] for item in orjson.loads(document).get("items", ())]
