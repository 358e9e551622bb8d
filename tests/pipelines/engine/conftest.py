"""Forks that tests kill, and a training of one process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.engine.runner import run_stages
from tests.pipelines.engine.ranks import CHOSEN, settings


def in_a_fork(action: Callable[[], object]) -> int:
    """Run in a child of this process; return its exit code, less than 0 for a signal."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train the two-tower in one process, into the workspace ``local``."""
    made = tmp_path_factory.mktemp("engines")
    run_stages(CHOSEN, settings(made, "local"))
    return made
