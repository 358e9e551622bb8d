"""A check of ``recsys doctor``: its result, and the environment that it looks at."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

Status = Literal["ok", "warn", "fail", "absent"]


class CheckResult(NamedTuple):
    """Result of one check."""

    name: str
    status: Status
    """``absent`` is something optional that is missing; only ``fail`` fails the command."""
    found: str
    wanted: str
    fix: str | None = None
    """Command that fixes it."""


class Probe(NamedTuple):
    """Output of a child process."""

    values: Mapping[str, Any] = {}
    error: str | None = None
    """Why it failed: the last line of its traceback, the signal, or the time limit."""


class Environment(NamedTuple):
    """Installed distributions, and how code is run in a child process."""

    versions: Mapping[str, str]
    probe: Callable[[str], Probe]

    @property
    def torch_is_cpu(self) -> bool:
        return self.versions.get("torch", "").endswith("+cpu")


def numbers(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, "2.11.0+cu130" as (2, 11, 0)."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def pip(*arguments: str) -> str:
    """Format the pip command of this environment."""
    return shlex.join([sys.executable, "-m", "pip", *arguments])
