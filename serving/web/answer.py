"""Answer a body: one list, or a batch of them, as bytes of JSON with what the log line says.

The same for the application in one process and for the server's workers.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import orjson

from serving.configuration.resolve import UnknownSurfaceError
from serving.cursor import CursorError
from serving.filtering.expression import FilterError
from serving.query import RequestError, UnknownItemError
from serving.recommend import Made, Recommender
from serving.schemas import BatchRequest, RankRequest, Request, SearchRequest, error_body, to_json
from serving.web.http import Answer, RefusedError, parsed_json, validated

BODIES: Mapping[str, type[Request | RankRequest]] = {
    "recommend": Request,
    "rank": RankRequest,
    "search_list": SearchRequest,
}
REFUSED = (CursorError, FilterError, RequestError, UnknownItemError, UnknownSurfaceError)
"""What may be wrong with a valid request."""


def refusal_of(error: Exception) -> tuple[int, dict[str, object]]:
    """Give the status and the body of an error's reply."""
    if isinstance(error, UnknownItemError):
        return 404, error_body("unknown_item", str(error))
    if isinstance(error, FilterError):
        fields = [{"field": "filter.where", "message": str(error)}]
        return 422, RefusedError(422, error.code, f"filter.where: {error}", fields).body
    return 422, error_body("invalid_request", str(error))


def answer_body(recommender: Recommender, head: Mapping[str, Any], body: bytes) -> Answer:
    """Make the list that a body requests.

    Args:
        head: ``type`` and ``encoding`` of the body; ``shown``: whether reasons may name items of
            the user's stored history; ``route``: name of the route, whose schema the body has.
    """
    try:
        content = parsed_json(head["type"], head["encoding"], body)
        sent = validated(BODIES[head["route"]], content)
        request = sent.request() if isinstance(sent, RankRequest) else sent
        return answered(recommender, recommender.make(request, names_history=head["shown"]))
    except RefusedError as error:
        return Answer(error.status, orjson.dumps(error.body), {})
    except REFUSED as error:
        status, content = refusal_of(error)
        return Answer(status, orjson.dumps(content), {})


def answer_batch(
    recommender: Recommender, head: Mapping[str, Any], body: bytes
) -> Generator[None, None, Answer]:
    """Make the lists that a body requests, all from one bundle; gives way after each."""
    try:
        batch = validated(BatchRequest, parsed_json(head["type"], head["encoding"], body))
    except RefusedError as error:
        return Answer(error.status, orjson.dumps(error.body), {})
    replies: list[bytes] = []
    records: list[bytes] = []
    for request in batch.requests:
        try:
            made = recommender.make(request, names_history=head["shown"])
            replies.append(to_json(made.reply))
            records += recorded(recommender, made)
        except REFUSED as error:
            replies.append(orjson.dumps(refusal_of(error)[1]))
        yield
    body = b'{"replies":[' + b",".join(replies) + b"]}"
    return Answer(200, body, {"num_requests": len(replies)}, records=tuple(records))


def answered(recommender: Recommender, made: Made) -> Answer:
    """Write a reply."""
    reply = made.reply
    fields = {
        "request_id": reply.request_id,
        "bundle": reply.served_by.bundle,
        "num_items": len(reply.items),
        "degraded": [what.code for what in reply.degraded],
        "fallback": reply.fallback,
        "sources": sorted({item.source for item in reply.items}),
        "timings_ms": reply.timings_ms,
    }
    return Answer(200, to_json(reply), fields, records=recorded(recommender, made))


def recorded(recommender: Recommender, made: Made) -> tuple[bytes, ...]:
    """Write the record of a list; none where nothing keeps it, or the request is a dry run."""
    if not recommender.live.keeps_lists or made.query.request.dry_run:
        return ()
    return (recommender.record(made),)
