"""A clock that can be set, for the packages of the platform; a wrong one is a fault of its own.

Every module of the platform that reads ``datetime.now`` reads this clock: a year passes in an
hour, and a machine whose clock was set back is one call. Files keep the times of the real clock.

    python -m tests.year.clock 2025-03-01T04:00:00+00:00 update -c shop.toml     in a process
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from datetime import datetime, timedelta, tzinfo
from importlib import import_module
from typing import Any

from pipelines.cli.main import app

_REAL = datetime
FILE_BYTES = "YEAR_FILE_BYTES"
PACKAGES = ("pipelines.", "features.", "recsys.", "serving.")
READERS = (
    "engine.history",
    "engine.workspace",
    "monitoring.document",
    "monitoring.monitor",
    "operations.collect",
    "operations.status",
    "partitions.ingest",
    "publishing.promotion",
    "publishing.released",
    "stages.evaluate",
    "update.policy",
)
"""Modules of ``pipelines`` that read the clock and are not loaded before a command needs them."""


class _AnyDatetime(type):
    def __instancecheck__(cls, one: object) -> bool:
        return isinstance(one, _REAL)


class ClockTime(datetime, metaclass=_AnyDatetime):
    """A datetime whose ``now`` is shifted."""

    shift = timedelta()

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return _REAL.now(tz) + cls.shift

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        """Another process gets a plain datetime."""
        day, time = (self.year, self.month, self.day), (self.hour, self.minute, self.second)
        return _REAL, (*day, *time, self.microsecond, self.tzinfo)


def set_clock(moment: datetime) -> None:
    """Let it be this moment; it goes on from there."""
    for name in READERS:
        import_module(f"pipelines.{name}")
    ClockTime.shift = moment - _REAL.now(moment.tzinfo)
    for name, module in list(sys.modules.items()):
        if name.startswith(PACKAGES) and getattr(module, "datetime", None) is _REAL:
            module.datetime = ClockTime  # type: ignore[attr-defined]


def reset_clock() -> None:
    """Let it be what it really is, for what runs after in this process."""
    ClockTime.shift = timedelta()
    for name, module in list(sys.modules.items()):
        if name.startswith(PACKAGES) and getattr(module, "datetime", None) is ClockTime:
            module.datetime = _REAL  # type: ignore[attr-defined]


def main(moment: str, arguments: list[str]) -> None:
    """Run a command at a moment, on a full disk if no file may have more than some bytes."""
    if size := os.environ.get(FILE_BYTES):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(size), int(size)))
    set_clock(_REAL.fromisoformat(moment))
    app(arguments)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
