"""Answer a body: one list, or a batch of them, as bytes of JSON with what the log line says.

The same for the application in one process and for the server's workers.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, NamedTuple

import orjson

from serving.filtering.expression import FilterError
from serving.query import UnknownItemError
from serving.recommend import Recommender
from serving.schemas import BatchRequest, Reply, Request, error_body, to_json
from serving.web.http import RefusedError, parsed_json, validated


class Answer(NamedTuple):
    """A status, the bytes of a body, and fields of the request's log line."""

    status: int
    body: bytes
    fields: dict[str, Any]
    headers: list[tuple[str, str]] | None = None
    """None are those of JSON."""


def answer_body(recommender: Recommender, head: Mapping[str, Any], body: bytes) -> Answer:
    """Make the list that a body requests.

    Args:
        head: ``type`` and ``encoding`` of the body; ``shown``: whether reasons may name items of
            the user's stored history.
    """
    try:
        request = validated(Request, parsed_json(head["type"], head["encoding"], body))
        return answered(recommender.answer(request, names_history=head["shown"]))
    except RefusedError as error:
        return Answer(error.status, orjson.dumps(error.body), {})
    except UnknownItemError as error:
        return Answer(404, orjson.dumps(error_body("unknown_item", str(error))), {})
    except FilterError as error:
        return Answer(422, orjson.dumps(misfit_filter(error)), {})


def misfit_filter(error: FilterError) -> dict[str, object]:
    """Describe a filter that does not fit the bundle as the body of a 422."""
    fields = [{"field": "filter.where", "message": str(error)}]
    return RefusedError(422, error.code, f"filter.where: {error}", fields).body


def answer_batch(
    recommender: Recommender, head: Mapping[str, Any], body: bytes
) -> Generator[None, None, Answer]:
    """Make the lists that a body requests, all from one bundle; gives way after each."""
    try:
        batch = validated(BatchRequest, parsed_json(head["type"], head["encoding"], body))
    except RefusedError as error:
        return Answer(error.status, orjson.dumps(error.body), {})
    replies: list[bytes] = []
    for request in batch.requests:
        try:
            reply: object = recommender.answer(request, names_history=head["shown"])
        except UnknownItemError as error:
            reply = error_body("unknown_item", str(error))
        except FilterError as error:
            reply = misfit_filter(error)
        replies.append(to_json(reply))
        yield
    body = b'{"replies":[' + b",".join(replies) + b"]}"
    return Answer(200, body, {"num_requests": len(replies)})


def answered(reply: Reply) -> Answer:
    """Write a reply."""
    fields = {
        "request_id": reply.request_id,
        "bundle": reply.served_by.bundle,
        "num_items": len(reply.items),
        "degraded": [what.code for what in reply.degraded],
        "fallback": reply.fallback,
        "sources": sorted({item.source for item in reply.items}),
        "timings_ms": reply.timings_ms,
    }
    return Answer(200, to_json(reply), fields)
