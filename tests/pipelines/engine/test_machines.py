"""A training on the ranks of two machines, which here are two processes that see one folder."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pipelines.config.engine import TorchrunConfig
from pipelines.config.run import RunConfig
from pipelines.engine.artifacts import read_json
from pipelines.engine.errors import RankLostError
from pipelines.engine.launch import explained
from pipelines.engine.machines import ANNOUNCED, Failure, Launch, Machine, join
from pipelines.engine.runner import pick_stages, run_stages
from pipelines.stages.list import STAGES
from tests.pipelines.engine.two_groups import (
    WEIGHTS,
    error_of_a_killed_rank,
    ranks_below,
    settings,
)

CHOSEN = pick_stages(STAGES, [], "train_two_tower")


def free_address() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


def on_two(folder: Path, wait_seconds: float = 60) -> RunConfig:
    config = settings(folder, "torchrun")
    several = TorchrunConfig(
        processes=1, machines=2, address=free_address(), wait_seconds=wait_seconds
    )
    return replace(config, torchrun=several)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("machines")


@pytest.fixture(scope="module")
def second(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run the other machine, for as long as there are trainings."""
    command = [sys.executable, "-m", "pipelines.cli.main", "join", str(folder / "torchrun")]
    options = ["--machine", "1", "--idle-seconds", "120"]
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.fixture(scope="module")
def killed(folder: Path, second: subprocess.Popen[str]) -> str:
    """The error of a run whose rank on the second machine was killed, before one that went on."""
    run_stages(CHOSEN, settings(folder, "local"))
    config = on_two(folder)
    error = error_of_a_killed_rank(CHOSEN, config, 1, lambda _: ranks_below(second.pid)[1])
    run_stages(CHOSEN, config)
    return error


def test_a_rank_killed_on_the_other_machine_is_named(killed: str) -> None:
    assert "rank 1 of 2" in killed
    assert "was killed by SIGKILL" in killed
    assert "Run the same command again" in killed


def test_ranks_of_two_machines_end_where_one_process_ends(folder: Path, killed: str) -> None:
    one, two = (load_file(folder / engine / WEIGHTS) for engine in ("local", "torchrun"))
    for name, value in one.items():
        # Sums in another order, carried on by many steps of Adam.
        torch.testing.assert_close(two[name], value, rtol=2e-2, atol=5e-3, msg=name)
    made = read_json(folder / "torchrun/train_two_tower/run.json")
    assert (made["engine"], made["ranks"], made["machines"]) == ("torchrun", 2, 2)
    assert not (folder / "torchrun" / ANNOUNCED).exists()


def test_a_machine_that_does_not_come_is_named(tmp_path: Path) -> None:
    with pytest.raises(RankLostError, match=r"1 of 2 machines are here .* after 5 s; missing: 1"):
        run_stages(CHOSEN, on_two(tmp_path, wait_seconds=5))
    assert not (tmp_path / "torchrun" / ANNOUNCED).exists()


def test_a_launch_that_nobody_touches_is_not_joined(tmp_path: Path) -> None:
    launch = Launch(id="old", stage="refit", folder=str(tmp_path), processes=1, machines=2)
    (tmp_path / ANNOUNCED).write_text(
        f'{{"id": "{launch.id}", "stage": "refit", "folder": "{tmp_path}", "processes": 1}}'
    )
    said: list[str] = []
    join(tmp_path, 1, said.append, idle_seconds=2)
    assert said == []
    assert [one.name for one in tmp_path.iterdir()] == [ANNOUNCED]


def test_a_machine_that_is_gone_is_named(tmp_path: Path) -> None:
    failures = {0: Failure(1, 5, "here")}
    found = explained("refit", tmp_path, 2, failures, [Machine(1, "gpu-8")])
    assert "machine 1 (gpu-8) is gone in stage refit" in str(found)


def test_machines_that_cannot_meet_are_refused() -> None:
    for address in (None, "head", "head:0", "head:http"):
        with pytest.raises(ValueError, match=r"torchrun.machines = 2 needs torchrun.address"):
            TorchrunConfig(machines=2, address=address)
    with pytest.raises(ValueError, match="machines must be >= 1, got 0"):
        TorchrunConfig(machines=0)
