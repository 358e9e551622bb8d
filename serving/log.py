"""Structured log: one JSON object a line, an event with fields; one line a request."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime

import orjson

LOGGER = logging.getLogger("recsys.serving")


class JsonLines(logging.Formatter):
    """Formats a record's message as ``event`` with its fields."""

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


def is_logged(times: int) -> bool:
    """True if a failure that repeats is logged: the first, then every 2nd, 4th, 8th."""
    return times & (times - 1) == 0


def log_to_stderr() -> None:
    """Send events to standard error as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    LOGGER.handlers = [handler]
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False
