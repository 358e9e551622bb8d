"""Tasks on a Ray cluster: the same functions, the same files, other machines.

The one place that knows Ray. A task is a function of a module and plain values; what it writes
depends on the task alone, so a lost one is simply run again elsewhere, and a run ends with the same
bytes on any number of machines. All machines see the data and the workspace at the same paths, and
have the same versions.
"""

from __future__ import annotations

import os
import platform
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, TypeVar
from urllib.parse import urlsplit

from features.parallel import THREADS
from pipelines.config.operation import RayConfig
from pipelines.engine.console import log
from pipelines.engine.errors import ClusterError
from recsys.data.versions import describe_difference, own_versions

Part = TypeVar("Part")
Result = TypeVar("Result")
COMPARED = ("recsys-platform", "polars", "numpy", "torch", "ray")
"""Libraries that have to be of one version on all nodes."""
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_task_oom_retries": "3",
}
"""Ray sends no statistics of its use, and a task that lacks memory is not retried for ever."""
SECONDS_TO_ANSWER, SECONDS_TO_CONNECT = 60.0, 5.0


@contextmanager
def ray_cluster(config: RayConfig) -> Iterator[RayRunner]:
    """Join the cluster at ``config.address``, or start one on this machine until the block ends."""
    if find_spec("ray") is None:
        raise ValueError('engine = "ray" needs Ray, which is not installed: pip install ray')
    os.environ.update({name: os.environ.get(name, value) for name, value in SETTINGS.items()})
    import ray

    own = not ray.is_initialized()
    if own:
        _join(config)
    try:
        runner = RayRunner(config)
        if difference := describe_difference(runner.versions()):
            raise ValueError(f"the nodes of the Ray cluster have {difference}")
        log.print(
            f"ray: {len(runner.nodes)} nodes ({runner.hosts}), {runner.workers} tasks at a time",
            soft_wrap=True,
        )
        yield runner
    finally:
        if own:
            ray.shutdown()


def _join(config: RayConfig) -> None:
    import ray

    address = config.address or os.environ.get("RAY_ADDRESS")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        # Without "local" Ray would join what another run has started on this machine.
        cpus = config.tasks_at_once or None
        ray.init(address="local", include_dashboard=False, num_cpus=cpus, **options)
        return
    _check_answers(address)
    try:
        ray.init(address=address, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ClusterError(f"the Ray cluster at {address} cannot be joined: {error}") from error


def _check_answers(address: str) -> None:
    """Check quickly that the address answers: Ray itself waits for minutes."""
    place = urlsplit(address if "//" in address else f"//{address}")
    if place.hostname is None or place.port is None:
        return
    try:
        socket.create_connection((place.hostname, place.port), timeout=SECONDS_TO_CONNECT).close()
    except OSError as error:
        raise ClusterError(
            f"nothing answers at {address} ({error}); start a cluster with `ray start --head`, "
            "correct ray.address, or leave it out for one on this machine"
        ) from error


class RayRunner:
    """Applies a function to tasks on the cluster and hands the results back in order.

    A task whose worker or node is lost is run again, at most ``config.retries`` times.
    """

    def __init__(self, config: RayConfig) -> None:
        import ray

        self._ray, self._config = ray, config
        self.nodes = {
            node["NodeID"]: str(node["NodeManagerHostname"])
            for node in ray.nodes()
            if node["Alive"]
        }
        """Host of each node, by its id."""
        self.hosts = ", ".join(sorted(set(self.nodes.values())))
        cpus = int(ray.cluster_resources().get("CPU", 1))
        self.workers = config.tasks_at_once or max(1, cpus)
        """Tasks that run at a time."""

    def __call__(
        self, function: Callable[[Part], Result], tasks: Iterable[Part], /
    ) -> Iterator[Result]:
        """Run tasks."""
        # Ray counts a processor for each task, so none takes more.
        one = {"env_vars": {THREADS: "1", "POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"}}
        remote = self._ray.remote(num_cpus=1, max_retries=self._config.retries, runtime_env=one)(
            _on_a_node
        )
        pending: deque[Any] = deque()
        for task in tasks:
            if len(pending) == 2 * self.workers:
                yield self._result(pending.popleft())
            pending.append(remote.remote(function, task))
        while pending:
            yield self._result(pending.popleft())

    def _result(self, reference: Any) -> Any:
        errors = self._ray.exceptions
        try:
            outcome = self._ray.get(reference)
        except errors.RayTaskError as error:
            raise error.cause from None
        except errors.RayError as error:
            raise ClusterError(
                f"a task was lost {self._config.retries + 1} times: {first_line(error)}. A worker "
                "that is ended again and again often has too little memory: lower "
                "ray.tasks_at_once. Run the same command again; finished stages are kept"
            ) from error
        if "error" not in outcome:
            return outcome["result"]
        raised: Exception = outcome["error"]
        raised.add_note(f"on node {outcome['node']}")
        raise raised

    def versions(self) -> list[Mapping[str, str]]:
        """Ask every node for the versions of what it runs."""
        strategies = self._ray.util.scheduling_strategies
        remote = self._ray.remote(num_cpus=0)(own_versions)
        found = []
        for node in self.nodes:
            place = strategies.NodeAffinitySchedulingStrategy(node, soft=False)
            found.append(remote.options(scheduling_strategy=place).remote(COMPARED))
        try:
            return [dict(one) for one in self._ray.get(found, timeout=SECONDS_TO_ANSWER)]
        except self._ray.exceptions.GetTimeoutError as error:
            raise ClusterError(
                f"not every node of the Ray cluster ({self.hosts}) answered within "
                f"{SECONDS_TO_ANSWER:g} seconds; see `ray status`, and take a node out that hangs"
            ) from error


def first_line(error: Exception) -> str:
    """Return the first line of an error's text."""
    return (str(error).strip().splitlines() or [repr(error)])[0]


def _on_a_node(function: Callable[[Part], Result], task: Part) -> dict[str, Any]:
    """Run one task where Ray has put it; its error comes back with the node's name."""
    node = platform.node()
    try:
        return {"node": node, "result": function(task)}
    except FileNotFoundError as error:
        words = "put the data and the workspace on storage that all nodes see at the same paths"
        named = f"{error.filename or error} is not on node {node}"
        missing = FileNotFoundError(f"{named}: {words}, or run without this node")
        return {"node": node, "error": missing}
    except ValueError as error:
        return {"node": node, "error": ValueError(f"{error} (on node {node})")}
    except (OSError, MemoryError) as error:
        return {"node": node, "error": error}
