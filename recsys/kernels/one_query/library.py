"""Compile the functions of one query with the C compiler of this machine, once, and load them.

What is compiled is kept in the user's cache folder (``RECSYS_KERNEL_CACHE``), under a name that
depends on the sources, the compiler's options and the instructions that torch uses here. A file is
loaded only if it belongs to this user or to root and nobody else may write to it.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from recsys.kernels.choice import SWITCH, cache_folder, is_on

NAME = "one_query"
HERE = Path(__file__).parent
COMPILERS = ("cc", "gcc", "clang")
OPTIONS = (
    *("-O3", "-std=c11", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
    *("-shared", "-fPIC"),
)
"""Products are not fused, as numpy's are not, so that equal scores stay equal."""
BY_CAPABILITY = {
    "AVX2": ("-mavx2", "-mfma"),
    "AVX512": ("-mavx2", "-mfma", *(f"-mavx512{part}" for part in ("f", "bw", "dq", "vl"))),
}
"""Options for the instructions that torch uses here; none for other processors."""
MAX_SECONDS = 120.0
REFERENCE = "numpy and torch answer, an operation at a time"


class Library(NamedTuple):
    """The compiled functions, or why there are none."""

    functions: ctypes.CDLL | None
    reason: str
    """Why it does not run, and what to do; empty if it runs."""


@cache
def load_library() -> Library:
    """Compile if that was not done before, and load; once in a process."""
    if not is_on(NAME):
        return Library(None, f"{SWITCH} names it: {REFERENCE}")
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    sources = sorted(HERE.glob("*.c"))
    capability = torch.backends.cpu.get_cpu_capability()
    options = (*OPTIONS, *BY_CAPABILITY.get(capability, ()))
    digest = hashlib.sha256(repr((options, platform.machine())).encode())
    for source in (*sources, *sorted(HERE.glob("*.h"))):
        digest.update(source.read_bytes())
    name = f"{NAME}-{digest.hexdigest()[:16]}.so"
    try:
        kept = cache_folder() / name
        if is_trusted(kept):
            return Library(ctypes.CDLL(str(kept)), "")
        if compiler is None:
            remedy = f"install a C compiler ({', '.join(COMPILERS)})"
            return Library(None, f"there is no C compiler on PATH, {remedy}: {REFERENCE}")
        return Library(_compile([compiler, *options], sources, kept), "")
    except subprocess.CalledProcessError as failed:
        said = failed.stderr.decode(errors="replace").strip().splitlines()[:1]
        return Library(None, f"{compiler} failed ({' '.join(said)}): {REFERENCE}")
    except (OSError, subprocess.TimeoutExpired) as failed:
        return Library(None, f"{type(failed).__name__}: {failed}: {REFERENCE}")


def is_trusted(path: Path) -> bool:
    """Return whether a file is there and only its owner, this user or root, may write to it."""
    try:
        found = [path.stat(), path.parent.stat()]
    except OSError:
        return False
    mine = all(one.st_uid in (0, os.geteuid()) for one in found)
    return mine and not any(one.st_mode & (stat.S_IWGRP | stat.S_IWOTH) for one in found)


def _compile(command: list[str], sources: list[Path], kept: Path) -> ctypes.CDLL:
    """Compile and load; the file is kept if the folder can be written to."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / kept.name
        subprocess.run(
            [*command, "-o", str(made), *map(str, sources), "-lm"],
            check=True,
            capture_output=True,
            timeout=MAX_SECONDS,
        )
        try:
            kept.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
            partial = kept.with_name(f".{kept.name}.{os.getpid()}")
            shutil.copy(made, partial)
            partial.chmod(0o644)
            partial.replace(kept)
        except OSError:
            # A home that cannot be written to: each start compiles again.
            return ctypes.CDLL(str(made))
        return ctypes.CDLL(str(kept if is_trusted(kept) else made))
