"""The routes of the application and its errors, over one loaded bundle.

A handler reads bytes, calls `Recommender.answer` and writes bytes; nothing is decided here. A
request that cannot be served gets `{"error": {code, message, fields?}}`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from functools import cache

from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from serving.bundle.published import check_published
from serving.explanation.phrasing import Phraser, PhrasingOptions
from serving.explanation.served_list import explain_list
from serving.log import LOG_FIELDS, log
from serving.online.of_settings import open_writer, store_opener
from serving.online.records import record_of
from serving.online.store import RequestRecord, StoreError
from serving.recommend import Recommender
from serving.schemas import ExplainParameters, Request, SimilarParameters, error_body
from serving.settings import Settings
from serving.web.answer import BODIES, REFUSED, answer_batch, answer_body, answered, refusal_of
from serving.web.http import (
    RECORDS,
    Answer,
    JsonResponse,
    RefusedError,
    at,
    read_body,
    read_parameters,
    shows_users,
    validated,
)
from serving.web.online import NO_STORE, change_items, forget_user, take_events
from serving.web.pages import add_pages

REQUEST_ID = re.compile("[0-9a-f]{32}")


def create_app(settings: Settings, recommender: Recommender | None = None) -> FastAPI:
    """Build the application over a bundle, by default the one of the settings.

    With a recommender it is a part of a server, whose front writes to the online store; without
    one it runs alone, and writes itself.

    Raises:
        ValueError: If there is no bundle to serve, or it is refused; says what to do.
    """
    writer = None
    if recommender is None:
        check_published(settings.followed)
        recommender = Recommender.load(settings.followed, settings).warm()
        settings, writer = open_writer(settings)
        recommender.connect(store_opener(settings), keeps_lists=settings.log_lists)
    app = FastAPI(title="recsys", openapi_url=None, docs_url=None, redoc_url=None)
    app.state.recommender, app.state.writer = recommender, writer
    _add_recommendations(app, recommender, settings)
    _add_explanations(app, recommender, settings)
    _add_writes(app, settings)
    _add_health(app, recommender)
    add_pages(app, recommender, settings)
    _add_errors(app)
    return app


def _add_recommendations(app: FastAPI, recommender: Recommender, settings: Settings) -> None:
    def make_list(name: str) -> Callable[[HttpRequest], Awaitable[Response]]:
        async def handler(http: HttpRequest) -> Response:
            head, body = await read_body(http, settings)
            return _replied(http, answer_body(recommender, {**head, "route": name}, body))

        return handler

    for name in BODIES:
        at(app, name)(make_list(name))

    @at(app, "recommend_batch")
    async def recommend_batch(http: HttpRequest) -> Response:
        """Make several lists, all from one bundle."""
        batch = answer_batch(recommender, *await read_body(http, settings))
        while True:
            try:
                next(batch)
            except StopIteration as done:
                return _replied(http, done.value)
            # Let other requests run between those of a batch.
            await asyncio.sleep(0)

    @at(app, "similar")
    async def similar(http: HttpRequest, item_id: str) -> Response:
        """List items like one item."""
        k = read_parameters(SimilarParameters, http).k
        request = validated(Request, {"surface": "similar", "item_id": item_id, "k": k})
        return _replied(http, answered(recommender, recommender.make(request)))


def _add_writes(app: FastAPI, settings: Settings) -> None:
    """What a server's front does itself."""

    @at(app, "events")
    async def events(http: HttpRequest) -> Response:
        """Store events."""
        return _replied(http, await take_events(app.state.writer, *await read_body(http, settings)))

    @at(app, "change_items")
    async def items(http: HttpRequest) -> Response:
        """Hide, show and describe items."""
        _check_admin(settings)
        given = await read_body(http, settings)
        return _replied(http, await change_items(app.state.writer, *given))

    @at(app, "forget")
    async def forget(http: HttpRequest, user_id: str) -> Response:
        """Forget a user."""
        _check_admin(settings)
        return _replied(http, await forget_user(app.state.writer, user_id))


def _check_admin(settings: Settings) -> None:
    """Refuse what keys do not stand for in an application that runs alone.

    Raises:
        RefusedError: 403.
    """
    if not settings.allow_admin:
        message = "an application without a server's keys does this where allow_admin is set"
        raise RefusedError(403, "no_keys", message)


def _add_explanations(app: FastAPI, recommender: Recommender, settings: Settings) -> None:
    phraser_of = cache(lambda: _phraser(settings))

    # Not async: a list is made again, beside other requests.
    @at(app, "explain")
    def explain(http: HttpRequest, request_id: str) -> Response:
        """Say why a served list is as it is, and why an item is not in it."""
        given = read_parameters(ExplainParameters, http)
        record = _record(recommender, request_id)
        shown, item_id = shows_users(http, settings), given.item_id
        phraser = phraser_of() if given.phrase else None
        found = explain_list(recommender, record, item_id, names_history=shown, phraser=phraser)
        # The caller's limit counts lists, and these were made.
        num_lists = {"num_requests": 1 + (found.num_left_out or 0)}
        http.scope.setdefault(LOG_FIELDS, {}).update(num_lists)
        return JsonResponse(found)


def _phraser(settings: Settings) -> Phraser:
    """Reach the endpoint that rewords sentences.

    Raises:
        RefusedError: 422, the server has none, or its key is missing.
    """
    if settings.phrasing_url is None or settings.phrasing_model is None:
        message = "this server rewords no sentences: phrasing_url and phrasing_model are not set"
        raise RefusedError(422, "invalid_request", f"phrase: {message}")
    options = PhrasingOptions(
        url=settings.phrasing_url,
        model=settings.phrasing_model,
        key_variable=settings.phrasing_key_variable,
        timeout_seconds=settings.phrasing_timeout_seconds,
    )
    try:
        return Phraser.of(options)
    except ValueError as error:
        raise RefusedError(422, "invalid_request", f"phrase: {error}") from error


def _record(recommender: Recommender, request_id: str) -> RequestRecord:
    """Find a served list.

    Raises:
        RefusedError: 404 or 503.
    """
    if not REQUEST_ID.fullmatch(request_id):
        raise RefusedError(404, "unknown_request", "a request_id has 32 digits of 0-9a-f")
    try:
        store = recommender.live.store()
        if store is None:
            raise RefusedError(503, "no_store", NO_STORE)
        found = store.request(request_id)
    except StoreError as error:
        raise RefusedError(503, "store_failed", str(error)) from None
    if found is None:
        raise RefusedError(
            404,
            "unknown_request",
            "no list with this request_id is kept; lists are kept within a tenth of a second, for "
            "the days that --log-days says, and dry runs never",
        )
    return found


def _add_health(app: FastAPI, recommender: Recommender) -> None:
    """What a server's front answers itself, with the state of its processes."""

    @at(app, "alive")
    async def healthz() -> Response:
        """Report that the process is alive."""
        return JsonResponse({"status": "alive"})

    @at(app, "ready")
    async def readyz() -> Response:
        """Report what is served, and whether a newer bundle was refused."""
        return JsonResponse({"status": "ready", **recommender.description()})


def _replied(http: HttpRequest, answer: Answer) -> Response:
    http.scope.setdefault(LOG_FIELDS, {}).update(answer.fields)
    http.scope.setdefault(RECORDS, []).extend(answer.records)
    if (writer := http.app.state.writer) is not None:
        for record in answer.records:
            writer.log(record_of(record))
    return JsonResponse(answer.body, answer.status)


async def _refused(_: HttpRequest, error: Exception) -> Response:
    status, content = refusal_of(error)
    return JsonResponse(content, status)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(RefusedError)
    async def refused(_: HttpRequest, error: RefusedError) -> Response:
        return JsonResponse(error.body, error.status)

    for kind in REFUSED:
        app.add_exception_handler(kind, _refused)

    @app.exception_handler(HTTPException)
    async def no_route(_: HttpRequest, error: HTTPException) -> Response:
        code = "method_not_allowed" if error.status_code == 405 else "no_such_route"
        content = error_body(code, f"{error.detail}; GET / lists the routes")
        return JsonResponse(content, error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def failed(_: HttpRequest, error: Exception) -> Response:
        log("request_failed", {"error": repr(error)}, level=logging.ERROR)
        return JsonResponse(error_body("internal", "the request failed; see the server's log"), 500)
