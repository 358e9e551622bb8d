"""Which configuration a kernel runs with: measured per device, kept on disk, shipped for some.

A configuration is a few whole numbers (tile sizes, warps), looked up by kernel, shape class and
type on the device at hand. First what ``recsys kernels tune`` found on this machine, in the user's
cache folder; then what the package ships in ``tuned/``; else the kernel's own default. An entry
counts only while the kernel's sources are those it was measured with.

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
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from recsys.data.durable import locked, write_durably

logger = logging.getLogger(__name__)

Config = dict[str, int]
FORMAT = 1
HERE = Path(__file__).parent
SHIPPED = HERE / "tuned"


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a launch asks for; see ``config_for``."""

    kernel: str
    shapes: str
    dtype: torch.dtype
    default: Config

    @property
    def name(self) -> str:
        """Under which the answer is kept."""
        return f"{self.kernel}|{self.shapes}|{str(self.dtype).removeprefix('torch.')}"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The best configuration found for a question, with its time and the default's."""

    question: Question
    config: Config
    ms: float
    default_ms: float


_answers: dict[tuple[str, str, torch.dtype, torch.device | str], Config | None] = {}
_tried: dict[str, Config] = {}
_listeners: list[list[Question]] = []


def shape_class(**sizes: float) -> str:
    """Name a class of shapes: each size rounded up to a power of two, so that near ones share."""
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
    """Choose the configuration of a launch; after the first call a look into a dictionary.

    Args:
        kernel: Folder of the kernel in ``recsys/kernels``, and after a dot which of its launches.
        shapes: The class of the shapes, from ``shape_class``.
        dtype: Type of the large tensors.
        default: What to use where nothing was measured; without a GPU, always.
    """
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
    """Where this machine's own measurements are kept, ``RECSYS_KERNEL_CACHE`` if that is set."""
    return Path(os.environ.get("RECSYS_KERNEL_CACHE") or "~/.cache/recsys/kernels").expanduser()


def file_name(device_name: str) -> str:
    """Name the file of a device: ``nvidia-h200.json``."""
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
            "kernel_tuning_ignored path=%s reason=%r; kernels run with their defaults, "
            "`recsys kernels tune` writes the file again",
            path,
            error,
        )
        return {}


def checked_entries(document: Any) -> dict[str, Any]:
    """Take the entries out of a document.

    Raises:
        ValueError: If it is not what ``store`` writes.
    """
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


def store(measured: Iterable[Measured], device_name: str, folder: Path | None = None) -> Path:
    """Add measurements to a device's file, whole or not at all; processes take turns.

    Raises:
        OSError: If the folder cannot be written.
    """
    folder = cache_folder() if folder is None else folder
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name(device_name)
    with locked(path.with_suffix(".lock")):
        entries.cache_clear()
        found = dict(entries(path))
        for one in measured:
            found[one.question.name] = {
                "source": source_digest(one.question.kernel),
                "config": one.config,
                "ms": round(one.ms, 6),
                "default_ms": round(one.default_ms, 6),
            }
        document = {"format": FORMAT, "device": device_name, "entries": found}
        write_durably(path, json.dumps(document, indent=1, sort_keys=True) + "\n")
    forget()
    return path


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


def neighbours(config: Config) -> Iterator[Config]:
    """Change one number at a time: ``stages`` by one, all others to half and double."""
    for name, number in config.items():
        near = (number - 1, number + 1) if "stages" in name else (number // 2, number * 2)
        most = {"num_warps": 16, "num_stages": 6}.get(name, 1 << 12)
        for other in near:
            if 1 <= other <= most:
                yield {**config, name: other}


def climb(
    question: Question, time_ms: Callable[[], float], is_right: Callable[[], bool]
) -> Measured:
    """Move from the default to the fastest neighbour while that is over 1% faster.

    A candidate that does not compile, does not fit the device or computes something else is passed
    over.
    """
    best, times = question.default, {}

    def time_of(config: Config) -> float:
        key = tuple(sorted(config.items()))
        if key not in times:
            times[key] = timed(question.kernel, config, time_ms, is_right)
        return times[key]

    default_ms = time_of(best)
    while True:
        nearest = min(neighbours(best), key=time_of, default=best)
        if not time_of(nearest) < 0.99 * time_of(best):
            break
        best = nearest
    return Measured(question=question, config=best, ms=time_of(best), default_ms=default_ms)


def timed(
    kernel: str, config: Config, time_ms: Callable[[], float], is_right: Callable[[], bool]
) -> float:
    """Time a kernel with a configuration; infinite where it cannot be used."""
    try:
        with trying(kernel, config):
            return time_ms() if is_right() else math.inf
    except Exception as error:
        # Triton has no one class for tiles that are too large.
        logger.info("kernel_config_failed kernel=%s config=%s reason=%r", kernel, config, error)
        return math.inf
