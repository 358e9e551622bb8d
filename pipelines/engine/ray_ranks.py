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
from typing import Any, NamedTuple

from pipelines.config.run import RunConfig
from pipelines.engine.errors import ClusterError
from pipelines.engine.ray_cluster import first_line, ray_cluster
from pipelines.engine.torchrun import WORK, Failure

LOG = "log-{}.txt"
"""File of a rank's log."""
SECONDS_TO_FAIL = 3.0
"""How long other ranks may take to fail of themselves once one has."""
SECONDS_TO_STOP = 10.0


class Place(NamedTuple):
    """A bundle of a placement group, with a free port."""

    node: str
    host: str
    address: str
    port: int


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


def place_here() -> Place:
    """Describe where this task runs."""
    import ray

    with socket.socket() as found:
        found.bind(("", 0))
        port = int(found.getsockname()[1])
    node = ray.get_runtime_context().get_node_id()
    return Place(node, platform.node(), ray.util.get_node_ip_address(), port)


def set_variables(places: Sequence[Place]) -> list[dict[str, str]]:
    """Set what torch's launcher sets for each rank; ranks of a node follow each other."""
    nodes = [place.node for place in places]
    # Ranks of one machine need no network.
    local = {"GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo")}
    is_local = sys.platform == "linux" and len({place.address for place in places}) == 1
    return [
        {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(places)),
            # Ray shows a task the GPU alone that it gives it.
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": str(nodes.count(place.node)),
            "MASTER_ADDR": places[0].address,
            "MASTER_PORT": str(places[0].port),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            **(local if is_local else {}),
        }
        for rank, place in enumerate(places)
    ]


def one_rank(folder: str, variables: Mapping[str, str]) -> Failure:
    """Start a rank, wait for its end and return its exit code."""
    rank = int(variables["RANK"])
    with (Path(folder) / LOG.format(rank)).open("ab") as log:
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

    def task(function: Any, bundle: int, **options: Any) -> Any:
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            group, placement_group_bundle_index=bundle
        )
        options |= {"scheduling_strategy": strategy, "max_retries": 0}
        return ray.remote(function).options(**options)

    found = ray.get([task(place_here, one, num_cpus=0).remote() for one in range(size)])
    nodes = list(dict.fromkeys(place.node for place in found))
    bundles = sorted(range(size), key=lambda one: nodes.index(found[one].node))
    places = [found[bundle] for bundle in bundles]
    variables = set_variables(places)
    takes = {"num_cpus": needed["CPU"], "num_gpus": needed.get("GPU", 0)}
    ranks = {
        task(one_rank, bundle, **takes).remote(str(folder.absolute()), variables[rank]): rank
        for rank, bundle in enumerate(bundles)
    }
    failures = _wait(ray, ranks, places)
    ray.util.remove_placement_group(group)
    return failures


def _wait(ray: Any, ranks: Mapping[Any, int], places: Sequence[Place]) -> dict[int, Failure]:
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
                ended = Failure(-signal.SIGKILL, places[ranks[reference]].host)
            if ended.code:
                failures[ranks[reference]] = ended
                seconds = SECONDS_TO_FAIL
    for reference in pending:
        ray.cancel(reference, force=True)
    ray.wait(pending, num_returns=len(pending), timeout=SECONDS_TO_STOP)
    return failures
