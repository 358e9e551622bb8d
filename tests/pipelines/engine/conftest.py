"""Forks that tests kill, and a Ray cluster a module, since tests kill its nodes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Start a Ray cluster of two nodes with one processor each, and join it."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Other tests run at the same time, and would starve workers of Ray's usual niceness, 15.
        patch.setenv("RAY_worker_niceness", "0")
        # Workers find the tests' functions as this process does.
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
        made = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
        )
        made.add_node(num_cpus=1)
        patch.setenv("RAY_ADDRESS", made.address)
        ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
        yield made
        ray.shutdown()
        made.shutdown()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train the two-tower in one process, into the workspace ``local``."""
    made = tmp_path_factory.mktemp("engines")
    run_stages(CHOSEN, settings(made, "local"))
    return made
