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
from pathlib import Path
from typing import Any, NamedTuple

from pipelines.config.run import RunConfig
from pipelines.engine.errors import RankLostError

WORK = "pipelines.cli.rank"
"""Module of one rank; above this room, because it knows all stages."""
LOG = "log-{}.txt"
"""File of a rank's log."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Failure(NamedTuple):
    """A rank that failed."""

    code: int
    """Exit code; less than 0: a signal."""
    host: str


def num_ranks(config: RunConfig) -> int:
    """Count the ranks of a machine for a run's training stages."""
    import torch

    gpus = 0 if config.device == "cpu" else torch.cuda.device_count()
    return config.torchrun.processes or gpus or 2


def start(stage: str, folder: Path, config: RunConfig) -> dict[int, Failure]:
    """Start this machine's ranks and wait for them; return those that failed first."""
    from torch.distributed import DistStoreError
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    several, place = config.torchrun, str(folder.absolute())
    meeting: dict[str, Any] = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}
    if several.machines > 1:
        # Ranks of the first machine come first: it writes the artefact and shows progress.
        wait = {"rank": 0, "timeout": int(several.wait_seconds)}
        meeting = {"rdzv_backend": "static", "rdzv_configs": wait}
        meeting["rdzv_endpoint"] = str(several.address)
    launch = LaunchConfig(
        min_nodes=several.machines,
        max_nodes=several.machines,
        nproc_per_node=num_ranks(config),
        # The default of torchrun, which starts the other machines' ranks.
        run_id="none",
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=place),
        **meeting,
    )
    host, _, port = str(several.address or LOOPBACK[0]).rpartition(":")
    with quiet_launcher(local=several.machines == 1 or (host or LOOPBACK[0]) in LOOPBACK):
        try:
            elastic_launch(launch, sys.executable)("-m", WORK, place)
        except ChildFailedError as error:
            return {
                rank: Failure(failure.exitcode, platform.node())
                for rank, failure in error.failures.items()
            }
        except DistStoreError as error:
            if several.machines == 1:
                raise
            raise RankLostError(
                f"not all of {several.machines} machines came for stage {stage} within "
                f"{several.wait_seconds:g} s. On each other one run, with --node-rank from 1: "
                f"torchrun --nnodes={several.machines} --node-rank=1 "
                f"--nproc-per-node={launch.nproc_per_node} --master-addr={host} "
                f"--master-port={port} -m {WORK}; or set torchrun.machines lower"
            ) from error
    return {}


@contextmanager
def quiet_launcher(*, local: bool) -> Iterator[None]:
    """Leave out the launcher's own log: the error of a rank is one sentence."""
    names = ("torch.distributed.elastic", "torch.distributed")
    levels = {logging.getLogger(name): logging.getLogger(name).level for name in names}
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for one in levels:
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
        for one, level in levels.items():
            one.setLevel(level)
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)
