"""The HTTP edge: routes, errors and the server process.

A handler reads bytes, calls `Recommender.answer` and writes bytes; nothing is decided here. Every
answer below 500 to a request that cannot be served is `{"error": {code, message, fields?}}`.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import torch
import uvicorn
from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.body import RefusedError, read_json, validated
from serving.hot_swap import BundleWatcher
from serving.log import log, log_to_stderr
from serving.pages.pages import add_pages, shows_users
from serving.query import UnknownItemError
from serving.recommend import Recommender
from serving.schemas import BatchRequest, Reply, Request
from serving.settings import Settings

LOG_FIELDS = "recsys.log_fields"


class JsonResponse(Response):
    """JSON by orjson, dataclasses included."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)


class RequestLog:
    """Logs one line a request: method, path, status, milliseconds and what the handler adds."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 0
        fields: dict[str, object] = {}
        scope[LOG_FIELDS] = fields

        async def remember(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, remember)
        finally:
            taken = round(1_000 * (time.perf_counter() - started), 3)
            route = scope.get("route")
            path = getattr(route, "path", "other")
            fields |= {"method": scope["method"], "path": path, "status": status, "ms": taken}
            log("request", fields)


def create_app(settings: Settings | None = None) -> FastAPI:
    """Load the bundle and build the application.

    Raises:
        ValueError: If there is no bundle to serve, or it is refused; says what to do.
    """
    settings = settings or Settings.from_environment()
    watcher = BundleWatcher(settings.bundles, settings, poll_seconds=settings.poll_seconds)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watcher.start()
        yield
        # Off the event loop: a bundle may be loading, and requests are still being answered.
        await asyncio.to_thread(watcher.stop)

    app = FastAPI(title="recsys", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.watcher = watcher
    _add_recommendations(app, watcher, settings)
    _add_health(app, watcher)
    add_pages(app, watcher, settings)
    _add_errors(app)
    if settings.log_requests:
        app.add_middleware(RequestLog)
    return app


def _add_recommendations(app: FastAPI, watcher: BundleWatcher, settings: Settings) -> None:
    @app.post("/v1/recommend", openapi_extra=_takes(Request))
    async def recommend(http: HttpRequest) -> Response:
        """Make one list."""
        request = validated(Request, await read_json(http, settings))
        shown = shows_users(http, settings)
        return _replied(http, watcher.recommender.answer(request, names_history=shown))

    @app.post("/v1/recommend:batch", openapi_extra=_takes(BatchRequest))
    async def recommend_batch(http: HttpRequest) -> Response:
        """Make several lists, all from one bundle."""
        batch = validated(BatchRequest, await read_json(http, settings))
        recommender, shown = watcher.recommender, shows_users(http, settings)
        replies = []
        for request in batch.requests:
            replies.append(_answer_or_error(recommender, request, shown))
            # A batch takes its turn between other requests.
            await asyncio.sleep(0)
        http.scope.setdefault(LOG_FIELDS, {})["num_requests"] = len(replies)
        return JsonResponse({"replies": replies})

    @app.get("/v1/similar/{item_id:path}", openapi_extra=_SIMILAR_PARAMETERS)
    async def similar(http: HttpRequest, item_id: str) -> Response:
        """List items like one item."""
        given = dict(http.query_params)
        if unknown := sorted(given.keys() - {"k"}):
            raise RefusedError(
                422, "invalid_request", f"the only parameter is k, got {unknown[0]!r}"
            )
        fields: dict[str, object] = {"surface": "similar", "item_id": item_id}
        if "k" in given:
            k = given["k"]
            # Anything but plain digits fails validation as the text it is.
            fields["k"] = int(k) if k.isascii() and k.isdecimal() and len(k) < 10 else k
        return _replied(http, watcher.recommender.answer(validated(Request, fields)))


def _answer_or_error(
    recommender: Recommender, request: Request, names_history: bool
) -> Reply | dict[str, object]:
    try:
        return recommender.answer(request, names_history=names_history)
    except UnknownItemError as error:
        return {"error": {"code": "unknown_item", "message": str(error)}}


def _replied(http: HttpRequest, reply: Reply) -> Response:
    http.scope.setdefault(LOG_FIELDS, {}).update(
        request_id=reply.request_id,
        bundle=reply.served_by.bundle,
        num_items=len(reply.items),
        degraded=[what.partition(":")[0] for what in reply.degraded],
    )
    return JsonResponse(reply)


def _add_health(app: FastAPI, watcher: BundleWatcher) -> None:
    @app.get("/healthz")
    async def healthz() -> Response:
        """Tell that the process answers."""
        return JsonResponse({"status": "alive"})

    @app.get("/readyz")
    async def readyz() -> Response:
        """Tell what is served, and whether a newer bundle was refused."""
        recommender, state = watcher.recommender, watcher.state
        bundle = recommender.bundle
        return JsonResponse(
            {
                "status": "ready",
                "bundle": bundle.version,
                "digest": bundle.digest,
                "profile": recommender.profile,
                "num_items": bundle.num_item_rows - 1,
                "semantic_ids": bundle.semantic_ids.version if bundle.semantic_ids else None,
                "loaded_at": state.loaded_at,
                "num_swaps": state.num_swaps,
                "num_refused": state.num_refused,
                "refused": state.refused,
                "adapters": recommender.adapters.versions,
                "adapters_refused": recommender.adapters.refused,
            }
        )


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(RefusedError)
    async def refused(_: HttpRequest, error: RefusedError) -> Response:
        return JsonResponse(error.body, status_code=error.status)

    @app.exception_handler(UnknownItemError)
    async def unknown_item(_: HttpRequest, error: UnknownItemError) -> Response:
        return _error(404, "unknown_item", str(error))

    @app.exception_handler(HTTPException)
    async def no_route(http: HttpRequest, error: HTTPException) -> Response:
        message = f"{error.detail}; GET / lists what is here"
        return _error(error.status_code, "no_such_route", message, error.headers)

    @app.exception_handler(Exception)
    async def failed(_: HttpRequest, error: Exception) -> Response:
        log("request_failed", {"error": repr(error)}, level=logging.ERROR)
        return _error(500, "internal", "the request failed; the server's log says why")


def _error(status: int, code: str, message: str, headers: Any = None) -> Response:
    content = {"error": {"code": code, "message": message}}
    return JsonResponse(content, status_code=status, headers=headers)


def _takes(schema: type[Request] | type[BatchRequest]) -> dict[str, Any]:
    """Describe a body that FastAPI does not parse itself."""
    content = {"application/json": {"schema": schema.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


_SIMILAR_PARAMETERS: dict[str, Any] = {
    "parameters": [
        {
            "name": "k",
            "in": "query",
            "required": False,
            "schema": {"type": "integer", "minimum": 1, "maximum": 1_000, "default": 20},
        }
    ]
}


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, which let running requests finish; SIGHUP looks for a bundle.

    Raises:
        ValueError: If there is no bundle to serve, or it is refused; says what to do.
    """
    log_to_stderr()
    torch.set_num_threads(settings.torch_threads)
    app = create_app(settings)
    watcher: BundleWatcher = app.state.watcher
    signal.signal(signal.SIGHUP, lambda *_: watcher.wake())
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=settings.drain_seconds,
        server_header=False,
    )
    address = f"http://{settings.host}:{settings.port}"
    log("serving", {"address": address, "bundles": settings.bundles})
    uvicorn.Server(config).run()
