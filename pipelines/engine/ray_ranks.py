"""Ranks of a training placed by a Ray cluster.

A placement group has a bundle a rank, so that all ranks have their place before any starts. In each
bundle a task starts the process that torch's launcher starts elsewhere, with the same variables.
Ray's own trainer is not used: it hides how a process ended, starts the others again and keeps
checkpoints of its own kind.
"""

from __future__ import annotations

import os
import platform
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.config.run import RunConfig
from pipelines.engine.errors import ClusterError
from pipelines.engine.ray_cluster import first_line, ray_cluster
from pipelines.engine.torchrun import WORK, Failure

LOG = "log-{}.txt"
"""File of a rank's log."""
SECONDS_TO_FAIL = 3.0
"""How long other ranks may take to fail of themselves once one has."""
SECONDS_TO_STOP = 10.0


def size_bundle(config: RunConfig, resources: Mapping[str, float]) -> dict[str, float]:
    """Compute what a rank takes of a cluster with these resources, by Ray's names."""
    ranks, needed = config.ray.ranks, {"CPU": 1.0}
    if config.device != "cpu" and resources.get("GPU", 0):
        needed["GPU"] = 1.0
    for name, each in needed.items():
        if resources.get(name, 0) < ranks * each:
            raise ValueError(
                f"ray.ranks = {ranks} need {ranks * each:g} {name}, and the cluster has "
                f"{resources.get(name, 0):g}; set ray.ranks lower, add nodes, "
                "or set device = 'cpu' of every training"
            )
    return needed


def free_port() -> int:
    """Find a port that is free where this task runs."""
    with socket.socket() as found:
        found.bind(("", 0))
        return int(found.getsockname()[1])


def set_variables(addresses: Sequence[str], port: int) -> list[dict[str, str]]:
    """Set what torch's launcher sets for each rank, by the ranks' addresses."""
    # Ranks of one machine need no network.
    is_local = sys.platform == "linux" and len(set(addresses)) == 1
    local = {"GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo")}
    return [
        {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(addresses)),
            # Ray shows a task the GPU alone that it gives it.
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": str(addresses.count(address)),
            "MASTER_ADDR": addresses[0],
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            **(local if is_local else {}),
        }
        for rank, address in enumerate(addresses)
    ]


def one_rank(folder: str, variables: Mapping[str, str]) -> Failure:
    """Start a rank, wait for its end and return its exit code."""
    with (Path(folder) / LOG.format(variables["RANK"])).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", WORK, folder],
            env={**os.environ, **variables},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    return Failure(process.wait(), platform.node())


def start_on_ray(folder: Path, config: RunConfig) -> dict[int, Failure]:
    """Run the ranks of a launch on the run's cluster; return those that failed first."""
    with ray_cluster(config.ray):
        import ray

        try:
            return place_ranks(folder, config)
        except ray.exceptions.RayError as error:
            raise ClusterError(
                f"the ranks could not be placed on the Ray cluster: {first_line(error)}; see `ray "
                "status`, and run the same command again"
            ) from error


def place_ranks(folder: Path, config: RunConfig) -> dict[int, Failure]:
    """Run the ranks in a placement group of the cluster that this process has joined."""
    import ray

    size, wait = config.ray.ranks, config.torchrun.wait_seconds
    needed = size_bundle(config, ray.cluster_resources())
    group = ray.util.placement_group([needed] * size, strategy="PACK")
    if not group.wait(wait):
        raise ClusterError(
            f"the Ray cluster had no room for {size} ranks of {needed} each in "
            f"{wait:g} s; see `ray status`, end other work, or lower ray.ranks"
        )

    def start(function: Any, bundle: int, *arguments: Any, **options: Any) -> Any:
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            group, placement_group_bundle_index=bundle
        )
        options |= {"scheduling_strategy": strategy, "max_retries": 0}
        return ray.remote(function).options(**options).remote(*arguments)

    addresses = {one["NodeID"]: str(one["NodeManagerAddress"]) for one in ray.nodes()}
    node_of = ray.util.placement_group_table(group)["bundles_to_node_id"]
    # Ranks of a node follow each other.
    bundles = sorted(range(size), key=lambda bundle: node_of[bundle])
    port = ray.get(start(free_port, bundles[0], num_cpus=0))
    variables = set_variables([addresses[node_of[bundle]] for bundle in bundles], port)
    takes = {"num_cpus": needed["CPU"], "num_gpus": needed.get("GPU", 0)}
    ranks = {
        start(one_rank, bundle, str(folder.absolute()), variables[rank], **takes): rank
        for rank, bundle in enumerate(bundles)
    }
    failures = _wait(ray, ranks)
    ray.util.remove_placement_group(group)
    return failures


def _wait(ray: Any, ranks: Mapping[Any, int]) -> dict[int, Failure]:
    """Wait for all ranks, or end the others once one has failed."""
    pending, failures, seconds = list(ranks), dict[int, Failure](), None
    while pending:
        done, pending = ray.wait(pending, timeout=seconds)
        if not done:
            break
        for reference in done:
            try:
                ended = Failure(*ray.get(reference))
            except ray.exceptions.RayError:
                # The rank ended with the worker or node that had started it.
                ended = Failure(-signal.SIGKILL, "a node of the cluster")
            if ended.code:
                failures[ranks[reference]] = ended
                seconds = SECONDS_TO_FAIL
    for reference in pending:
        ray.cancel(reference, force=True)
    ray.wait(pending, num_returns=len(pending), timeout=SECONDS_TO_STOP)
    return failures
