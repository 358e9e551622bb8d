"""The engine of a run: this process, several ranks, or a Ray cluster.

    engine = "torchrun"

    [torchrun]
    processes = 4

Nothing here shapes an artefact: a laptop continues a workspace that four GPUs trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from recsys.training.distributed.sharded import ShardingConfig

Engine = Literal["local", "torchrun", "ray"]
MIN_WAIT_SECONDS = 5.0
MAX_PORT = 65_536


@dataclass(frozen=True, kw_only=True)
class TorchrunConfig(ShardingConfig):
    """How the training stages run on several processes (ranks), one a GPU."""

    processes: int = 0
    """Ranks on this machine; 0 takes one a GPU, or two on a CPU."""
    machines: int = 1
    """Machines with that number of ranks each; on all but the one of the command torchrun runs."""
    address: str | None = None
    """Address of this machine for the others, such as ``10.0.0.1:29500``; for several machines."""
    wait_seconds: float = 600.0
    """How long a rank waits for the others in a step, and this machine for the others to join,
    before the training ends with an error."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.processes < 0:
            raise ValueError(f"processes must be >= 1, or 0 for one a GPU, got {self.processes}")
        if self.machines < 1:
            raise ValueError(f"machines must be >= 1, got {self.machines}")
        port = (self.address or "").rpartition(":")[2]
        if self.machines > 1 and not (port.isdecimal() and 0 < int(port) < MAX_PORT):
            raise ValueError(
                f"torchrun.machines = {self.machines} needs torchrun.address = "
                f'"<this machine>:<port>", which the others can reach, got {self.address!r}'
            )
        if not self.wait_seconds >= MIN_WAIT_SECONDS:
            raise ValueError(
                f"wait_seconds must be at least {MIN_WAIT_SECONDS:g}, got {self.wait_seconds}: "
                "starting a rank alone takes some seconds"
            )


@dataclass(frozen=True, kw_only=True)
class RayConfig:
    """Which Ray cluster works, and how many tasks at a time."""

    address: str | None = None
    """Running cluster (``host:6379``); None takes RAY_ADDRESS, else starts one here."""
    tasks_at_once: int = 0
    """Tasks that run at a time; 0 takes one a processor of the cluster."""
    retries: int = 3
    """How often a task is run again whose worker or node was lost."""
    ranks: int = 1
    """Ranks of a training that the cluster places, one a GPU where it has any; 1 trains where the
    command runs. Their other settings are those of ``torchrun``."""

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise ValueError(f"ranks must be >= 1, got {self.ranks}")
        if self.tasks_at_once < 0 or self.retries < 0:
            raise ValueError(
                f"tasks_at_once and retries must be >= 0, got {self.tasks_at_once} and "
                f"{self.retries}"
            )
