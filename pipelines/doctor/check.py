"""The result of a check of ``recsys doctor``, and of code run in a child process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["ok", "warn", "fail", "absent"]


@dataclass(frozen=True)
class CheckResult:
    """What one check found."""

    name: str
    status: Status
    """``absent`` is something optional that is not there; only ``fail`` makes the exit code 1."""
    found: str
    wanted: str
    fix: str | None = None
    """The command that fixes it; None where nothing is wrong."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What a child process printed."""

    values: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    """Why it failed: the last line of its traceback, the signal, or the time limit."""
