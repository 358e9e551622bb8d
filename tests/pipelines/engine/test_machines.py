"""A training on the ranks of two machines, here two launchers that see one folder."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.config.run import RunConfig
from pipelines.config.trainings import TorchrunConfig
from pipelines.engine.errors import RankLostError
from pipelines.engine.launch import explained
from pipelines.engine.runner import run_stages
from pipelines.engine.torchrun import Failure
from tests.pipelines.engine.two_groups import (
    CHOSEN,
    assert_ends_where_one_process_ends,
    error_of_a_killed_rank,
    ranks_below,
    settings,
)


def free_address() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


def on_two(folder: Path, wait_seconds: float = 60) -> RunConfig:
    config = settings(folder, "torchrun")
    several = TorchrunConfig(
        processes=1, machines=2, address=free_address(), wait_seconds=wait_seconds
    )
    return replace(config, torchrun=several, workspace=folder / "machines")


@contextmanager
def second(config: RunConfig) -> Iterator[subprocess.Popen[bytes]]:
    """Run torchrun as on the other machine, which knows the address alone."""
    port = str(config.torchrun.address).rpartition(":")[2]
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--node-rank=1"),
        *("--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={port}"),
        *("--rdzv-conf=timeout=120", "-m", "pipelines.cli.rank"),
    ]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
        yield process
        process.kill()


@pytest.fixture(scope="module")
def killed(folder: Path) -> str:
    """The error of a run whose rank on the second machine was killed, before one that ended."""
    config = on_two(folder)
    with second(config) as other:
        error = error_of_a_killed_rank(config, 1, lambda _: ranks_below(other.pid)[1])
    config = on_two(folder)
    with second(config) as other:
        run_stages(CHOSEN, config)
        assert other.wait(60) == 0
    return error


def test_a_rank_killed_on_the_other_machine_is_said(killed: str) -> None:
    assert "rank 0 of 2 failed in stage train_two_tower" in killed
    assert "rank 1 after step" in killed
    assert "see torchrun on the others" in killed
    assert "Run the same command again" in killed


def test_ranks_of_two_machines_end_where_one_process_ends(folder: Path, killed: str) -> None:
    assert_ends_where_one_process_ends(folder, "machines", engine="torchrun", ranks=2, machines=2)


def test_a_machine_that_does_not_come_is_said_with_its_command(tmp_path: Path) -> None:
    with pytest.raises(RankLostError, match=r"not all of 2 machines came .* 5 s.*torchrun --nnod"):
        run_stages(CHOSEN, on_two(tmp_path, wait_seconds=5))


def test_a_lost_connection_to_another_machine_is_said(tmp_path: Path) -> None:
    failures = {0: Failure(1, 5, "here")}
    found = explained("refit", tmp_path, 2, failures, 2)
    assert "rank 1 before its first step; see torchrun on the others" in str(found)


def test_machines_that_cannot_meet_are_refused() -> None:
    for address in (None, "head", "head:0", "head:http"):
        with pytest.raises(ValueError, match=r"torchrun.machines = 2 needs torchrun.address"):
            TorchrunConfig(machines=2, address=address)
    with pytest.raises(ValueError, match="machines must be >= 1, got 0"):
        TorchrunConfig(machines=0)
