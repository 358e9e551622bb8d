"""Tasks on a Ray cluster: the same functions, the same files, other machines.

The one place that knows Ray. A task is a function of a module and plain values; what it writes
depends on the task alone, so a lost one is simply run again elsewhere, and a run ends with the same
bytes on any number of machines. All machines see the data and the workspace at the same paths, and
have the same versions.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, TypeVar

from features.parallel import THREADS
from pipelines.config.operation import RayConfig
from pipelines.engine.console import log
from pipelines.engine.errors import ClusterError

Part = TypeVar("Part")
Result = TypeVar("Result")
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_task_oom_retries": "3",
}
"""Ray sends no statistics of its use, and a task that lacks memory is not retried for ever."""


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
        log.print(
            f"ray: {len(runner.nodes)} nodes ({', '.join(sorted(set(runner.nodes)))}), "
            f"{runner.workers} tasks at a time",
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
    try:
        ray.init(address=address, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ClusterError(f"the Ray cluster at {address} cannot be joined: {error}") from error


class RayRunner:
    """Applies a function to tasks on the cluster and hands the results back in order.

    A task whose worker or node is lost is run again, at most ``config.retries`` times.
    """

    def __init__(self, config: RayConfig) -> None:
        import ray

        self._ray, self._config = ray, config
        self.nodes = [str(one["NodeManagerHostname"]) for one in ray.nodes() if one["Alive"]]
        """Host of each node."""
        cpus = int(ray.cluster_resources().get("CPU", 1))
        self.workers = config.tasks_at_once or max(1, cpus)
        """Tasks that run at a time."""

    def __call__(
        self, function: Callable[[Part], Result], tasks: Iterable[Part], /
    ) -> Iterator[Result]:
        """Run tasks."""
        # Ray counts a processor for each task, so none takes more.
        one = {"env_vars": {THREADS: "1", "POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"}}
        options = {"num_cpus": 1, "max_retries": self._config.retries, "runtime_env": one}
        remote = self._ray.remote(**options)(_apply)
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
            return self._ray.get(reference)
        except errors.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, FileNotFoundError):
                raise FileNotFoundError(
                    f"{cause.filename or cause} is not on a node of the Ray cluster: put the data "
                    "and the workspace on storage that all nodes see at the same paths"
                ) from None
            raise cause from None
        except errors.RayError as error:
            raise ClusterError(
                f"a task was lost {self._config.retries + 1} times: {first_line(error)}. A worker "
                "that is ended again and again often has too little memory: lower "
                "ray.tasks_at_once. Run the same command again; finished stages are kept"
            ) from error


def first_line(error: Exception) -> str:
    """Return the first line of an error's text."""
    return (str(error).strip().splitlines() or [repr(error)])[0]


def _apply(function: Callable[[Part], Result], task: Part) -> Result:
    """Run one task; Ray takes functions of a module alone, and these take any callable."""
    return function(task)
