"""Which kernels run: on a CUDA device with Triton all of them, less those that are switched off.

``RECSYS_KERNELS_OFF`` is the one switch: names separated by commas, or ``all``. It is read when the
package is imported, and processes that are started inherit it. The fallback of a kernel computes
the same within the tolerances of its tests.

A kernel asks for its tile sizes and warps by name, shape class and type:

    default = {"block_b": 8, "unroll": 8, "num_warps": 1}
    config = config_for("embedding_bag.forward", shape_class(dim=64, length=20), dtype, default)

First counts what ``tests/benchmarks/kernels/tune.py`` found on this machine, in the cache folder of
the user, then what the package ships in ``tuned/``, and only while the sources of the kernel are
those it was measured with. It may change how a kernel that adds tile by tile rounds, nothing else.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

SWITCH = "RECSYS_KERNELS_OFF"
KERNELS = {
    "embedding_bag": "torch's embedding bags",
    "hstu_attention": "padded attention in torch",
    "routed_experts": "batched products in torch",
    "softmax_rows": "a pass over memory for each operation of a softmax",
    "topk_search": "torch's product and topk",
    "captured_step": "a launch for each operation of a training step",
}
"""By kernel of a device, what runs without it."""
HOST = "one_query"
"""The compiled functions that answer requests on the host; one_query/library.py says if they do."""


class Use(NamedTuple):
    """A kernel, if it runs, and why not."""

    kernel: str
    runs: bool
    reason: str
    """Why it does not run, and what does; empty where it runs."""


def parsed_switch(text: str) -> frozenset[str]:
    """Read the names of kernels that are off."""
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    known = {*KERNELS, HOST}
    if "all" in names:
        return frozenset(known)
    if unknown := sorted(names - known):
        raise ValueError(
            f"{SWITCH} names {', '.join(unknown)}, which is no kernel; there are "
            f"{', '.join(KERNELS)}, {HOST}, and all"
        )
    return names


_off = parsed_switch(os.environ.get(SWITCH, ""))


def is_on(kernel: str) -> bool:
    """Return whether a kernel may run."""
    return kernel not in _off


def runs(kernel: str, tensor: Tensor) -> bool:
    """Return whether a kernel runs on a tensor: on CUDA, or in Triton's interpreter."""
    return (tensor.is_cuda or interpreting()) and kernel not in _off and has_triton()


@cache
def interpreting() -> bool:
    """Return whether Triton's interpreter runs the kernels, on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@cache
def has_triton() -> bool:
    """Return whether kernels can be compiled here."""
    return find_spec("triton") is not None


@contextmanager
def without(*kernels: str) -> Iterator[None]:
    """Switch kernels off inside, for comparison; ``all`` is every one."""
    global _off
    before, _off = _off, _off | parsed_switch(",".join(kernels))
    try:
        yield
    finally:
        _off = before


def uses(device: torch.device) -> list[Use]:
    """Return of every kernel whether it runs on a device, and why not."""
    found = []
    for kernel, instead in KERNELS.items():
        reason = ""
        if kernel in _off:
            reason = f"{SWITCH} names it"
        elif device.type != "cuda":
            reason = f"the device is {device.type}"
        elif not kernel.startswith("captured") and not has_triton():
            reason = "Triton is not installed"
        found.append(Use(kernel, not reason, f"{reason}: {instead}" if reason else ""))
    return found


def summary(device: torch.device) -> str:
    """Return in one line which kernels run on a device and why others do not."""
    found = uses(device)
    running = [use.kernel for use in found if use.runs]
    reasons: dict[str, list[str]] = {}
    for use in found:
        if not use.runs:
            reasons.setdefault(use.reason.partition(":")[0], []).append(use.kernel)
    parts = [f"kernels on {device.type}: {', '.join(running) or 'none'}"]
    parts += [f"without {', '.join(names)} ({reason})" for reason, names in reasons.items()]
    return "; ".join(parts)


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
    """Read the configuration of a device, the user's own first; None where nothing was."""
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
