"""Start the ranks of a training by torch's elastic launcher, with its own rendezvous.

One machine works alone. Of several, the one that runs the command starts its share here; on each
other one ``torchrun --node-rank`` starts ``pipelines.cli.rank`` (docs/several-machines.md).
"""

from __future__ import annotations

import logging
import os
import platform
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipelines.engine.errors import RankLostError

WORK = "pipelines.cli.rank"
"""Module that is one rank; above this room, because it knows all stages."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Ranks that are started together."""

    stage: str
    folder: str
    """Folder of the launch, at the same path on all machines."""
    processes: int
    """Ranks of each machine."""
    machines: int = 1
    address: str | None = None
    """Where the first machine is reached, ``host:port``; None for one machine."""
    wait_seconds: float = 600.0

    @property
    def is_local(self) -> bool:
        """Whether ranks need no network."""
        host = (self.address or LOOPBACK[0]).rpartition(":")[0] or LOOPBACK[0]
        return self.machines == 1 or host in LOOPBACK

    @property
    def elsewhere(self) -> str:
        """Command that starts the ranks of another machine."""
        host, _, port = str(self.address).rpartition(":")
        return (
            f"torchrun --nnodes={self.machines} --node-rank=1 --nproc-per-node={self.processes} "
            f"--master-addr={host} --master-port={port} -m {WORK}"
        )


class Failure(NamedTuple):
    """A rank that failed."""

    code: int
    """Exit code; less than 0: a signal."""
    process: int
    host: str


def start(launch: Launch) -> dict[int, Failure]:
    """Start this machine's ranks and wait for them."""
    from torch.distributed import DistStoreError
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    meeting: dict[str, Any] = (
        {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}
        if launch.machines == 1
        else {
            # Ranks of the first machine come first: it writes the artefact and shows progress.
            "rdzv_backend": "static",
            "rdzv_endpoint": str(launch.address),
            "rdzv_configs": {"rank": 0, "timeout": int(launch.wait_seconds)},
        }
    )
    config = LaunchConfig(
        min_nodes=launch.machines,
        max_nodes=launch.machines,
        nproc_per_node=launch.processes,
        # The default of torchrun, which starts the other machines' ranks.
        run_id="none",
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=launch.folder),
        **meeting,
    )
    with quiet_launcher(local=launch.is_local):
        try:
            elastic_launch(config, sys.executable)("-m", WORK, launch.folder)
        except ChildFailedError as error:
            return {
                rank: Failure(failure.exitcode, failure.pid, platform.node())
                for rank, failure in error.failures.items()
            }
        except DistStoreError as error:
            if launch.machines == 1:
                raise
            raise RankLostError(
                f"not all of {launch.machines} machines came for stage {launch.stage} within "
                f"{launch.wait_seconds:g} s. On each other one run, with --node-rank from 1: "
                f"{launch.elsewhere}; or set torchrun.machines lower"
            ) from error
    return {}


@contextmanager
def quiet_launcher(*, local: bool) -> Iterator[None]:
    """Leave out the launcher's own log: what went wrong is said in one sentence."""
    loggers = [
        logging.getLogger(name) for name in ("torch.distributed.elastic", "torch.distributed")
    ]
    levels = [one.level for one in loggers]
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for one in loggers:
        one.setLevel(logging.CRITICAL + 1)
    if sys.platform == "linux" and local:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        yield
    except BaseException as error:
        if type(error).__name__ == "SignalException":
            number = int(getattr(error, "sigval", signal.SIGTERM))
            if number == signal.SIGINT:
                raise KeyboardInterrupt from None
            raise SystemExit(128 + number) from None
        raise
    finally:
        for one, level in zip(loggers, levels, strict=True):
            one.setLevel(level)
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)
