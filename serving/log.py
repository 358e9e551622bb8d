"""Structured log: one JSON object a line, an event with fields; one line a request."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOGGER = logging.getLogger("recsys.serving")
LOG_FIELDS = "recsys.log_fields"
"""Where a request's scope holds what its handler adds to the line."""


class JsonLines(logging.Formatter):
    """Formats a record's message as ``event`` beside its fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def log(
    event: str, fields: Mapping[str, object], *, level: int = logging.INFO, failed: bool = False
) -> None:
    """Log one event; ``failed`` adds the exception that is being handled."""
    LOGGER.log(level, event, extra={"fields": fields}, exc_info=failed)


def log_to_stderr() -> None:
    """Send events to standard error as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    LOGGER.handlers = [handler]
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False


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

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        finally:
            ms = round(1_000 * (time.perf_counter() - started), 3)
            path = getattr(scope.get("route"), "path", "other")
            fields |= {"method": scope["method"], "path": path, "status": status, "ms": ms}
            log("request", fields)
