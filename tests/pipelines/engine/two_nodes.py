"""A Ray cluster of two nodes on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def two_nodes() -> Iterator[Any]:
    """Start two nodes of one processor each; the address is RAY_ADDRESS meanwhile."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Workers find the tests' functions as this process does.
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
        made = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
        )
        made.add_node(num_cpus=1)
        patch.setenv("RAY_ADDRESS", made.address)
        yield made
        made.shutdown()


@contextmanager
def joined_nodes() -> Iterator[Any]:
    """Start two nodes and join them with this process, which may then lose one of them."""
    import ray

    with two_nodes() as made:
        ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
        yield made
        ray.shutdown()
