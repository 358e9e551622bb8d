"""Ranks of a training placed by a Ray cluster; started by ``pipelines/engine/ray_launch.py``.

python -m pipelines.executor.ray_ranks FOLDER_OF_THE_LAUNCH

A placement group has a bundle a rank, so that all ranks have their place before any starts. In each
bundle a task starts the process that torch's launcher starts elsewhere, with the same variables.
Ray's own trainer is not used: it hides how a process ended, starts the others again and keeps
checkpoints of its own kind.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pipelines.config.run import RunConfig
from pipelines.config.toml import validate
from pipelines.engine.errors import ClusterError
from pipelines.engine.launch import JOB, LOG, SECONDS_BETWEEN_LOOKS, Job
from pipelines.engine.ray_launch import ENDED, end_with_the_parent
from pipelines.engine.torchrun import WORK, Failure
from pipelines.executor.ray_cluster import RayRunner, ray_cluster

PROCESS = "process-{}"
"""File with the number of a rank's process."""
SECONDS_TO_FAIL = 3.0
"""How long other ranks may take to fail of themselves once one has."""
SECONDS_TO_STOP = 10.0


class Place(NamedTuple):
    """A bundle of a placement group."""

    node: str
    host: str
    address: str
    port: int
    """Free there."""


def bundle_of(config: RunConfig, resources: Mapping[str, float]) -> dict[str, float]:
    """Say what a rank takes of a cluster."""
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


def variables_of(places: Sequence[Place]) -> list[dict[str, str]]:
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
    """Be the parent of a rank until it ends; returns its exit code."""
    rank = int(variables["RANK"])
    with (Path(folder) / LOG.format(rank)).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", WORK, folder],
            env={**os.environ, **variables},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    (Path(folder) / PROCESS.format(rank)).write_text(str(process.pid))
    return Failure(process.wait(), process.pid, platform.node())


class Placed:
    """Ranks in the bundles of a placement group."""

    def __init__(self, run: RayRunner, folder: Path, config: RunConfig) -> None:
        """Reserve the bundles."""
        import ray

        self._ray, self._folder, self._config = ray, folder, config
        needed = bundle_of(config, ray.cluster_resources())
        self._needed = {"num_cpus": needed["CPU"], "num_gpus": needed.get("GPU", 0)}
        size, wait = config.ray.ranks, config.torchrun.wait_seconds
        self._group = ray.util.placement_group([needed] * size, strategy="PACK")
        if not self._group.wait(wait):
            raise ClusterError(
                f"the Ray cluster ({', '.join(sorted(set(run.nodes.values())))}) had no room for "
                f"{size} ranks of {needed} each in {wait:g} s; see `ray status`, end other work, "
                "or lower ray.ranks"
            )

    def _task(self, function: Any, bundle: int, **options: Any) -> Any:
        strategy = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            self._group, placement_group_bundle_index=bundle
        )
        options |= {"scheduling_strategy": strategy, "max_retries": 0}
        return self._ray.remote(function).options(**options)

    def run(self) -> dict[int, Failure]:
        """Run the ranks; returns those that failed first."""
        size = self._config.ray.ranks
        located = [self._task(place_here, bundle, num_cpus=0).remote() for bundle in range(size)]
        found: list[Place] = self._ray.get(located)
        nodes = list(dict.fromkeys(place.node for place in found))
        bundles = sorted(range(size), key=lambda one: nodes.index(found[one].node))
        places = [found[bundle] for bundle in bundles]
        folder = str(self._folder.absolute())
        variables = variables_of(places)
        ranks = {
            self._task(one_rank, bundle, **self._needed).remote(folder, variables[rank]): rank
            for rank, bundle in enumerate(bundles)
        }
        failures = self._wait(ranks, places)
        self._ray.util.remove_placement_group(self._group)
        return failures

    def _wait(self, ranks: Mapping[Any, int], places: Sequence[Place]) -> dict[int, Failure]:
        """Wait for all ranks, or end the others once one has failed."""
        pending, failures, shown, until = list(ranks), dict[int, Failure](), 0, float("inf")
        while pending and time.monotonic() < until:
            done, pending = self._ray.wait(pending, timeout=SECONDS_BETWEEN_LOOKS)
            shown = self._show(shown)
            for reference in done:
                rank = ranks[reference]
                ended = self._ended(reference, rank, places[rank])
                if ended.code:
                    failures[rank] = ended
                    until = min(until, time.monotonic() + SECONDS_TO_FAIL)
        for reference in pending:
            self._ray.cancel(reference, force=True)
        self._ray.wait(pending, num_returns=len(pending), timeout=SECONDS_TO_STOP)
        self._show(shown)
        return failures

    def _ended(self, reference: Any, rank: int, place: Place) -> Failure:
        try:
            return Failure(*self._ray.get(reference))
        except self._ray.exceptions.RayError:
            # The rank ended with the worker or node that had started it.
            path = self._folder / PROCESS.format(rank)
            process = int(path.read_text()) if path.exists() else 0
            return Failure(-signal.SIGKILL, process, place.host)

    def _show(self, shown: int) -> int:
        """Show what the first rank printed from a place on; return where that ends."""
        path = self._folder / LOG.format(0)
        text = path.read_bytes()[shown:] if path.exists() else b""
        sys.stderr.write(text.decode(errors="replace"))
        sys.stderr.flush()
        return shown + len(text)


def main() -> None:
    """Place the ranks, and write down how they ended."""
    end_with_the_parent()
    folder = Path(sys.argv[1])
    job = Job(**json.loads((folder / JOB).read_text()))
    config = validate(RunConfig, job.config, JOB)
    document: dict[str, Any]
    try:
        with ray_cluster(config.ray) as run:
            document = {"failures": Placed(run, folder, config).run()}
    except (ValueError, ClusterError) as error:
        document = {"kind": type(error).__name__, "message": str(error)}
    (folder / ENDED).write_text(json.dumps(document))


if __name__ == "__main__":
    main()
