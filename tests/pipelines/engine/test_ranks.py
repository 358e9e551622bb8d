"""A training on two ranks, by torchrun, Ray or two machines: one process's weights after a kill."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock, call

import pytest
import torch
from safetensors.torch import load_file

from features.schema import FilterConfig
from pipelines.cli.rank import LogFile, describe_error
from pipelines.config.operation import RayConfig
from pipelines.config.run import DataConfig, EvaluationConfig, RunConfig
from pipelines.config.trainings import TorchrunConfig, TwoTowerTrainingConfig
from pipelines.engine.errors import RankLostError, UnstableTrainingError
from pipelines.engine.launch import ERROR, explain, pass_on
from pipelines.engine.ray_ranks import size_bundle
from pipelines.engine.runner import pick_stages, run_stages
from pipelines.engine.stage import RunLog
from pipelines.engine.torchrun import Failure, num_ranks
from pipelines.stages.list import STAGES
from recsys.models.configs import TwoTowerConfig
from recsys.training.distributed.several import RanksError

CHOSEN = pick_stages(STAGES, [], "train_two_tower")
WEIGHTS = "train_two_tower/given/two_tower/two_tower.safetensors"
SECONDS_FOR_A_STEP = 300
FIRST = 1_700_000_000


def settings(folder: Path, name: str, **fields: object) -> RunConfig:
    """Two groups of users, each with items of its own."""
    events = folder / "events.csv"
    if not events.exists():
        lines = [
            f"u{user},i{20 * (user % 2) + (7 * user + 3 * n) % 20},{FIRST + 1000 * user + n}"
            for user in range(60)
            for n in range(12)
        ]
        events.write_text("\n".join(["user_id,item_id,event_time", *lines]) + "\n")
    config = RunConfig(
        workspace=folder / name,
        device="cpu",
        torchrun=TorchrunConfig(processes=2, wait_seconds=60),
        data=DataConfig(events=events),
        filters=FilterConfig(min_user_events=0, min_item_events=0),
        two_tower=TwoTowerConfig(
            embedding_dim=8, hidden_dim=8, dropout=0.0, id_dropout=0.0, backend="torch"
        ),
        two_tower_training=TwoTowerTrainingConfig(
            batch_size=64,
            max_epochs=8,
            epochs_per_evaluation=2,
            patience=50,
            checkpoint_seconds=0.05,
        ),
        evaluation=EvaluationConfig(num_resamples=0),
    )
    return replace(config, **fields)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train the two-tower in one process, into the workspace ``local``."""
    made = tmp_path_factory.mktemp("engines")
    run_stages(CHOSEN, settings(made, "local"))
    return made


def find_rank(rank: int, is_own: Callable[[int, str], bool]) -> int | None:
    """Find the process of a rank by its parent and its command line."""
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            above = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            line = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            variables = (place / "environ").read_bytes().split(b"\0")
            if f"RANK={rank}".encode() in variables and is_own(above, line):
                return int(place.name)
    return None


def killed(config: RunConfig, is_own: Callable[[int, str], bool]) -> str:
    """Run stages, kill the second rank once there is a checkpoint, and return the error."""

    def kill() -> None:
        until = time.monotonic() + SECONDS_FOR_A_STEP
        while time.monotonic() < until:
            if any(config.workspace.glob("checkpoints/*/given/step-*")):
                process = find_rank(1, is_own)
                if process is not None:
                    os.kill(process, signal.SIGKILL)
                    return
            time.sleep(0.01)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(RankLostError) as caught:
        run_stages(CHOSEN, config)
    killer.join()
    return str(caught.value)


def assert_equal_to_local(folder: Path, name: str) -> None:
    """Compare weights and manifest with those of one process."""
    one, other = (load_file(folder / place / WEIGHTS) for place in ("local", name))
    assert one.keys() == other.keys()
    for key, value in one.items():
        # Sums in another order, carried on by many steps of Adam.
        torch.testing.assert_close(other[key], value, rtol=2e-2, atol=5e-3, msg=key)
    stage = folder / name / "train_two_tower"
    own, local = (
        json.loads((place / "manifest.json").read_text())["config"]
        for place in (stage, folder / "local/train_two_tower")
    )
    assert own == local


def assert_named(error: str) -> None:
    for words in ("train_two_tower: rank 1 of 2 was killed by SIGKILL", "log-1.txt", "resumes"):
        assert words in error


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_ranks_of_ray_that_resume_after_a_kill_end_where_one_process_ends(folder):
    config = settings(folder, "ray", engine="ray", ray=RayConfig(ranks=2))
    assert_named(killed(config, lambda _, line: str(config.workspace) in line))
    run_stages(CHOSEN, config)
    assert_equal_to_local(folder, "ray")
    # A run here continues from artefacts that ranks have made.
    here = replace(config, engine="local")
    assert all(outcome.skipped for outcome in run_stages(CHOSEN, here))
    small = settings(folder, "small", engine="ray", ray=RayConfig(ranks=3))
    with pytest.raises(ValueError, match=r"ray\.ranks = 3 need 3 CPU, and the cluster has 2"):
        run_stages(CHOSEN, small)


def on_two(folder: Path, wait_seconds: float = 60) -> RunConfig:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{found.getsockname()[1]}"
    several = TorchrunConfig(processes=1, machines=2, address=address, wait_seconds=wait_seconds)
    return settings(folder, "torchrun", engine="torchrun", torchrun=several)


@pytest.mark.slow
def test_ranks_of_a_machine_that_are_killed_resume_on_two_and_end_where_one_process_ends(folder):
    """The other machine runs torchrun, which knows the address alone."""
    alone = settings(folder, "torchrun", engine="torchrun")
    assert_named(killed(alone, lambda _, line: str(alone.workspace) in line))
    config = on_two(folder)
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--node-rank=1"),
        *("--nproc-per-node=1", "--master-addr=127.0.0.1"),
        f"--master-port={str(config.torchrun.address).rpartition(':')[2]}",
        *("--rdzv-conf=timeout=120", "-m", "pipelines.cli.rank"),
    ]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    with ExitStack() as stack:
        other = stack.enter_context(
            subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        )
        stack.callback(other.kill)
        run_stages(CHOSEN, config)
        assert other.wait(60) == 0
    assert_equal_to_local(folder, "torchrun")


def test_a_machine_that_does_not_come_is_said_with_its_command(tmp_path):
    with pytest.raises(RankLostError, match=r"not all of 2 machines came .* 5 s.*torchrun --nnod"):
        run_stages(CHOSEN, on_two(tmp_path, wait_seconds=5))


def test_errors_of_ranks_are_raised_as_what_they_are(tmp_path):
    def noted(rank: int, kind: str, message: str) -> None:
        error = {"rank": rank, "time": rank, "kind": kind, "message": message}
        (tmp_path / ERROR.format(rank)).write_text(json.dumps(error))

    failures = {0: Failure(1, "a"), 1: Failure(1, "a")}
    assert "rank 0 of 2 ended with exit code 1" in str(explain("refit", tmp_path, 2, failures))
    noted(0, "", "Connection closed by peer")
    assert "rank 0 of 2 failed: Connection closed" in str(explain("refit", tmp_path, 2, failures))
    noted(1, "UnstableTrainingError", "loss was not finite")
    found = explain("refit", tmp_path, 2, failures)
    assert isinstance(found, UnstableTrainingError)
    assert str(found) == "loss was not finite"


def test_what_the_first_rank_logs_is_passed_on(tmp_path):
    path, kept = tmp_path / "logged.jsonl", MagicMock(spec=RunLog)
    pass_on(path, kept)
    log = LogFile(path)
    log.log(7, loss=0.25)
    log.tags({"served": "yes"})
    with path.open("a") as file:
        file.write('["log", [8')
    pass_on(path, kept)
    assert kept.mock_calls == [call.log(7, loss=0.25), call.tags({"served": "yes"})]


def test_ranks_are_the_gpus_or_two_processes(monkeypatch, tmp_path):
    config = RunConfig(workspace=tmp_path, ray=RayConfig(ranks=4))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert num_ranks(config) == 4
    assert num_ranks(replace(config, torchrun=TorchrunConfig(processes=3))) == 3
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert num_ranks(config) == 2
    assert size_bundle(config, {"CPU": 8, "GPU": 4}) == {"CPU": 1, "GPU": 1}
    assert size_bundle(config, {"CPU": 8}) == {"CPU": 1}
    with pytest.raises(ValueError, match=r"need 4 GPU, and the cluster has 3"):
        size_bundle(config, {"CPU": 8, "GPU": 3})


@pytest.mark.parametrize(
    ("kind", "fields", "named"),
    [
        (TorchrunConfig, {"processes": -1}, "processes must be >= 1, or 0"),
        (TorchrunConfig, {"wait_seconds": 1}, "wait_seconds must be at least 5"),
        (TorchrunConfig, {"machines": 0}, "machines must be >= 1, got 0"),
        (TorchrunConfig, {"machines": 2}, "machines = 2 needs torchrun.address"),
        (TorchrunConfig, {"machines": 2, "address": "head:0"}, "needs torchrun.address"),
        (RayConfig, {"ranks": 0}, "must be >= 1"),
        (RayConfig, {"tasks_at_once": -1}, "must be >= 0"),
        (RayConfig, {"retries": -1}, "must be >= 0"),
    ],
)
def test_impossible_settings_are_refused(kind, fields, named):
    with pytest.raises(ValueError, match=named):
        kind(**fields)


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), "MemoryError", "torchrun.shard_from"),
        (ValueError("no events"), "ValueError", "no events"),
        (RanksError("different versions of torch"), "ValueError", "different versions of torch"),
        (OSError(28, "No space left on device"), "OSError", "No space left on device"),
        (ZeroDivisionError("bug"), "", "bug"),
    ],
)
def test_errors_that_a_rank_writes_down_keep_their_kind_and_words(error, kind, message):
    found = describe_error(error, 3)
    assert (found["kind"], found["rank"]) == (kind, 3)
    assert message in str(found["message"])
