"""Start the ranks of a training on a Ray cluster: by a process that knows Ray, not here."""

from __future__ import annotations

import ctypes
import json
import signal
import subprocess
import sys
from pathlib import Path

from pipelines.engine.errors import ClusterError
from pipelines.engine.torchrun import Failure

PLACES = "pipelines.executor.ray_ranks"
"""Module that places the ranks."""
ENDED = "ended.json"
"""How they ended, or why there are none."""


def end_with_the_parent() -> None:
    """Let the kernel end this process when the one that started it is killed."""
    if sys.platform == "linux":
        set_death_signal = 1
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


def start_on_ray(folder: Path) -> dict[int, Failure]:
    """Run the ranks of a launch on the cluster that its configuration names."""
    with subprocess.Popen([sys.executable, "-m", PLACES, str(folder)]) as process:
        try:
            code = process.wait()
        finally:
            process.terminate()
    path = folder / ENDED
    document = json.loads(path.read_text()) if path.exists() else {}
    if "message" in document:
        kinds: dict[str, type[Exception]] = {"ClusterError": ClusterError}
        raise kinds.get(document["kind"], ValueError)(document["message"])
    if "failures" not in document:
        raise ClusterError(
            f"what places the ranks on the Ray cluster ended with exit code {code}; see `ray "
            "status`, and run the same command again"
        )
    return {int(rank): Failure(*values) for rank, values in document["failures"].items()}
