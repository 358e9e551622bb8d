"""The HTTP edge: routes, errors and the server process.

A handler reads bytes, calls `Recommender.answer` and writes bytes; nothing is decided here. A
request that cannot be served gets `{"error": {code, message, fields?}}`.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import torch
import uvicorn
from fastapi import FastAPI
from fastapi import Request as HttpRequest
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from serving.bundle.manifest import CURRENT
from serving.hot_swap import BundleWatcher
from serving.log import LOG_FIELDS, RequestLog, log, log_to_stderr
from serving.query import UnknownItemError
from serving.recommend import Recommender
from serving.schemas import BatchRequest, Reply, Request, SimilarParameters
from serving.settings import Settings
from serving.web.http import (
    JsonResponse,
    RefusedError,
    body_schema,
    error_body,
    parameters_schema,
    read_json,
    read_parameters,
    shows_users,
    validated,
)
from serving.web.pages import add_pages


def create_app(settings: Settings | None = None) -> FastAPI:
    """Load the bundle and build the application.

    Raises:
        ValueError: If there is no bundle to serve, or it is refused; says what to do.
    """
    settings = settings or Settings.from_environment()
    watcher = BundleWatcher(
        settings.bundles,
        settings,
        poll_seconds=settings.poll_seconds,
        name=settings.bundle or CURRENT,
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watcher.start()
        yield
        # Off the event loop: a bundle may be loading, and requests are still being answered.
        await asyncio.to_thread(watcher.stop)

    app = FastAPI(
        title="recsys", lifespan=lifespan, openapi_url=None, docs_url=None, redoc_url=None
    )
    app.state.watcher = watcher
    _add_recommendations(app, watcher, settings)
    _add_health(app, watcher)
    add_pages(app, watcher, settings)
    _add_errors(app)
    if settings.log_requests:
        app.add_middleware(RequestLog)
    return app


def _add_recommendations(app: FastAPI, watcher: BundleWatcher, settings: Settings) -> None:
    @app.post("/v1/recommend", openapi_extra=body_schema(Request))
    async def recommend(http: HttpRequest) -> Response:
        """Make one list."""
        request = validated(Request, await read_json(http, settings))
        shown = shows_users(http, settings)
        return _replied(http, watcher.recommender.answer(request, names_history=shown))

    @app.post("/v1/recommend:batch", openapi_extra=body_schema(BatchRequest))
    async def recommend_batch(http: HttpRequest) -> Response:
        """Make several lists, all from one bundle."""
        batch = validated(BatchRequest, await read_json(http, settings))
        recommender, shown = watcher.recommender, shows_users(http, settings)
        replies = []
        for request in batch.requests:
            replies.append(_answer_or_error(recommender, request, shown))
            # Let other requests run between those of a batch.
            await asyncio.sleep(0)
        http.scope.setdefault(LOG_FIELDS, {})["num_requests"] = len(replies)
        return JsonResponse({"replies": replies})

    @app.get("/v1/similar/{item_id:path}", openapi_extra=parameters_schema(SimilarParameters))
    async def similar(http: HttpRequest, item_id: str) -> Response:
        """List items like one item."""
        k = read_parameters(SimilarParameters, http).k
        request = validated(Request, {"surface": "similar", "item_id": item_id, "k": k})
        return _replied(http, watcher.recommender.answer(request))


def _answer_or_error(
    recommender: Recommender, request: Request, names_history: bool
) -> Reply | dict[str, object]:
    try:
        return recommender.answer(request, names_history=names_history)
    except UnknownItemError as error:
        return error_body("unknown_item", str(error))


def _replied(http: HttpRequest, reply: Reply) -> Response:
    http.scope.setdefault(LOG_FIELDS, {}).update(
        request_id=reply.request_id,
        bundle=reply.served_by.bundle,
        num_items=len(reply.items),
        degraded=[what.code for what in reply.degraded],
    )
    return JsonResponse(reply)


def _add_health(app: FastAPI, watcher: BundleWatcher) -> None:
    @app.get("/healthz")
    async def healthz() -> Response:
        """Report that the process is alive."""
        return JsonResponse({"status": "alive"})

    @app.get("/readyz")
    async def readyz() -> Response:
        """Report what is served, and whether a newer bundle was refused."""
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


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT, which let running requests finish; SIGHUP polls for a bundle.

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
