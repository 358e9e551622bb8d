"""Which configuration a kernel runs with: measured per device, kept on disk, shipped for some.

A configuration is a few whole numbers (tile sizes, warps), looked up by kernel, shape class and
type on the device at hand. First what `tests/benchmarks/kernels/tune.py` found on this machine, in
the cache folder of the user; then what the package ships in ``tuned/``; else the default of the
kernel. An entry counts only while the sources of the kernel are those it was measured with.

A kernel asks in two lines, in the file that launches it, where ``default`` is what it would use
without tuning:

    default = {"block_b": 8, "unroll": 8, "num_warps": 1}
    config = config_for("embedding_bag.forward", shape_class(dim=64, length=20), dtype, default)

Tuning may change how a kernel that adds tile by tile rounds, nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

logger = logging.getLogger(__name__)

Config = dict[str, int]
FORMAT = 1
HERE = Path(__file__).parent
SHIPPED = HERE / "tuned"


@dataclass(frozen=True, kw_only=True)
class Question:
    """Question of a launch; see ``config_for``."""

    kernel: str
    shapes: str
    dtype: torch.dtype
    default: Config

    @property
    def name(self) -> str:
        """Under which the answer is kept."""
        return f"{self.kernel}|{self.shapes}|{str(self.dtype).removeprefix('torch.')}"


_answers: dict[tuple[str, str, torch.dtype, torch.device | str], Config | None] = {}
_tried: dict[str, Config] = {}
_listeners: list[list[Question]] = []


def shape_class(**sizes: float) -> str:
    """Format a class of shapes: each size rounded up to a power of two, so that near ones share."""
    parts = [
        f"{name}{1 << max(0, int(-(-size // 1)) - 1).bit_length()}" for name, size in sizes.items()
    ]
    return "-".join(parts)


def config_for(
    kernel: str,
    shapes: str,
    dtype: torch.dtype,
    default: Config,
    device: torch.device | str = "cuda",
) -> Config:
    """Choose the configuration of a launch; after the first call a look into a dictionary."""
    for questions in _listeners:
        questions.append(Question(kernel=kernel, shapes=shapes, dtype=dtype, default=default))
    if kernel in _tried:
        return _tried[kernel]
    key = (kernel, shapes, dtype, device)
    if key not in _answers:
        question = Question(kernel=kernel, shapes=shapes, dtype=dtype, default=default)
        there = torch.cuda.is_available()
        _answers[key] = lookup(question, torch.cuda.get_device_name(device)) if there else None
    return _answers[key] or default


def lookup(question: Question, device_name: str) -> Config | None:
    """Read what was measured for a device, the user's own first; None where nothing was."""
    for folder in (cache_folder(), SHIPPED):
        entry = entries(folder / file_name(device_name)).get(question.name)
        if entry is None or entry["source"] != source_digest(question.kernel):
            continue
        config: Config = dict(entry["config"])
        if config.keys() == question.default.keys():
            return config
    return None


def cache_folder() -> Path:
    """Return the folder of this machine's measurements, ``RECSYS_KERNEL_CACHE`` if that is set."""
    return Path(os.environ.get("RECSYS_KERNEL_CACHE") or "~/.cache/recsys/kernels").expanduser()


def file_name(device_name: str) -> str:
    """Return the file of a device: ``nvidia-h200.json``."""
    return re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-") + ".json"


@cache
def source_digest(kernel: str) -> str:
    """Digest a kernel's Triton sources: another kernel may want another configuration."""
    folder = HERE / kernel.split(".", 1)[0]
    sources = sorted(folder.glob("triton_*.py"))
    if not sources:
        raise ValueError(
            f"kernel {kernel!r} has no Triton sources in {folder}; name it after its folder"
        )
    digest = hashlib.sha256()
    for path in sources:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@cache
def entries(path: Path) -> Mapping[str, Any]:
    """Read a file of measurements; one that cannot be used is named once and passed over."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return checked_entries(document)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        logger.warning(
            "kernel_tuning_ignored path=%s reason=%r; kernels run with their defaults until the "
            "file is measured again or removed",
            path,
            error,
        )
        return {}


def checked_entries(document: Any) -> dict[str, Any]:
    """Take the entries out of a document."""
    if document["format"] != FORMAT:
        raise ValueError(f"format {document['format']}, this version reads {FORMAT}")
    found = dict(document["entries"])
    for name, entry in found.items():
        whole = all(
            isinstance(key, str) and type(number) is int for key, number in entry["config"].items()
        )
        if not whole or not isinstance(entry["source"], str):
            raise ValueError(f"entry {name!r} is not a configuration of whole numbers")
    return found


def forget() -> None:
    """Read the files again at the next launch."""
    entries.cache_clear()
    _answers.clear()


@contextlib.contextmanager
def trying(kernel: str, config: Config) -> Iterator[None]:
    """Run a kernel's launches with a configuration, whatever was measured."""
    _tried[kernel] = config
    try:
        yield
    finally:
        del _tried[kernel]


@contextlib.contextmanager
def asking() -> Iterator[list[Question]]:
    """Collect what the launches inside ask for."""
    questions: list[Question] = []
    _listeners.append(questions)
    try:
        yield questions
    finally:
        _listeners.pop()
