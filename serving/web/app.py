"""The routes of the application and its errors, over one loaded bundle.

A handler reads bytes, calls `Recommender.answer` and writes bytes; nothing is decided here. A
request that cannot be served gets `{"error": {code, message, fields?}}`.
"""

from __future__ import annotations

import asyncio
import logging

from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from serving.bundle.published import check_published
from serving.loading import describe, load_and_try
from serving.log import LOG_FIELDS, log
from serving.query import UnknownItemError
from serving.recommend import Recommender
from serving.schemas import Request, SimilarParameters, error_body
from serving.settings import Settings
from serving.web.answer import Answer, answer_batch, answer_body, answered
from serving.web.http import (
    JsonResponse,
    RefusedError,
    read_body,
    read_parameters,
    validated,
)
from serving.web.pages import add_pages


def create_app(settings: Settings, recommender: Recommender | None = None) -> FastAPI:
    """Build the application over a bundle, by default the one of the settings.

    Raises:
        ValueError: If there is no bundle to serve, or it is refused; says what to do.
    """
    if recommender is None:
        check_published(settings.followed)
        recommender = load_and_try(settings.followed, settings)
    app = FastAPI(title="recsys", openapi_url=None, docs_url=None, redoc_url=None)
    app.state.recommender = recommender
    _add_recommendations(app, recommender, settings)
    _add_health(app, recommender)
    add_pages(app, recommender, settings)
    _add_errors(app)
    return app


def _add_recommendations(app: FastAPI, recommender: Recommender, settings: Settings) -> None:
    @app.post("/v1/recommend")
    async def recommend(http: HttpRequest) -> Response:
        """Make one list."""
        head, body = await read_body(http, settings)
        return _replied(http, answer_body(recommender, head, body))

    @app.post("/v1/recommend:batch")
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

    @app.get("/v1/similar/{item_id:path}")
    async def similar(http: HttpRequest, item_id: str) -> Response:
        """List items like one item."""
        k = read_parameters(SimilarParameters, http).k
        request = validated(Request, {"surface": "similar", "item_id": item_id, "k": k})
        return _replied(http, answered(recommender.answer(request)))


def _add_health(app: FastAPI, recommender: Recommender) -> None:
    """What a server's front answers itself, with the state of its processes."""

    @app.get("/healthz")
    async def healthz() -> Response:
        """Report that the process is alive."""
        return JsonResponse({"status": "alive"})

    @app.get("/readyz")
    async def readyz() -> Response:
        """Report what is served, and whether a newer bundle was refused."""
        return JsonResponse({"status": "ready", **describe(recommender)})


def _replied(http: HttpRequest, answer: Answer) -> Response:
    http.scope.setdefault(LOG_FIELDS, {}).update(answer.fields)
    return JsonResponse(answer.body, answer.status)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(RefusedError)
    async def refused(_: HttpRequest, error: RefusedError) -> Response:
        return JsonResponse(error.body, error.status)

    @app.exception_handler(UnknownItemError)
    async def unknown_item(_: HttpRequest, error: UnknownItemError) -> Response:
        return JsonResponse(error_body("unknown_item", str(error)), 404)

    @app.exception_handler(HTTPException)
    async def no_route(_: HttpRequest, error: HTTPException) -> Response:
        code = "method_not_allowed" if error.status_code == 405 else "no_such_route"
        content = error_body(code, f"{error.detail}; GET / lists the routes")
        return JsonResponse(content, error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def failed(_: HttpRequest, error: Exception) -> Response:
        log("request_failed", {"error": repr(error)}, level=logging.ERROR)
        return JsonResponse(error_body("internal", "the request failed; see the server's log"), 500)
