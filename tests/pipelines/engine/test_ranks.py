"""A training on two ranks, on one or two machines: one process's weights after a kill."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock, call

import pytest
import torch
from safetensors.torch import load_file

from pipelines.cli.rank import LogFile, describe_error
from pipelines.config.run import RunConfig
from pipelines.config.trainings import SequenceTrainingConfig, TorchrunConfig
from pipelines.engine.artifacts import RunLog
from pipelines.engine.errors import RankLostError, UnstableTrainingError
from pipelines.engine.launch import ERROR, explain, pass_on
from pipelines.engine.runner import pick_stages, run_stages
from pipelines.engine.torchrun import Failure, num_ranks
from pipelines.stages.list import STAGES
from recsys.models.sequence.config import SequenceConfig
from recsys.training.distributed.several import RanksError
from tests.pipelines.engine.ranks import (
    CHOSEN,
    assert_equal_to_local,
    assert_named,
    killed,
    settings,
)


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


FULL_ON_THE_SECOND = """
import os
if os.environ.get("RANK") == "1":
    import torch
    def backward(*arguments, **options):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    torch.Tensor.backward = backward
"""


@pytest.mark.slow
def test_one_of_two_ranks_is_out_of_memory_and_then_both_train_the_sequence_model(
    folder, tmp_path, monkeypatch
):
    """Checkpoint and artefact are read in this process, which has none of the ranks."""
    on = SequenceTrainingConfig(enabled=True, batch_size=16, max_epochs=4.0)
    model = SequenceConfig(embedding_dim=8, hidden_dim=8, dropout=0.0, id_dropout=0.0)
    changes = {"sequence": model, "sequence_training": on}
    needed = ["build_features", "enrich_items", "embed_items", "train_sequence"]
    stages = pick_stages(STAGES, needed, None)
    alone, two = (
        settings(folder, f"sequence-{engine}", engine=engine, **changes)
        for engine in ("local", "torchrun")
    )
    run_stages(stages, alone)
    (tmp_path / "sitecustomize.py").write_text(FULL_ON_THE_SECOND)
    with monkeypatch.context() as patched:
        patched.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
        with pytest.raises(MemoryError, match=r"rank 1 on .*2\.00 GiB Make batch_size"):
            run_stages(stages, two)
    run_stages(stages, two)
    places = [one.workspace / "train_sequence/given/sequence" for one in (alone, two)]
    first, second = (load_file(place / "sequence.safetensors") for place in places)
    for name, value in first.items():
        torch.testing.assert_close(second[name], value, rtol=2e-2, atol=5e-3, msg=name)


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


BEATING = """
import sys, time
from pathlib import Path
from pipelines.engine.launch import heartbeat
with heartbeat(Path(sys.argv[1]), int(sys.argv[2]), 0.1, 0.6):
    time.sleep(30)
"""


def test_a_rank_that_stops_answering_is_named_by_the_others(tmp_path):
    ranks = [
        subprocess.Popen([sys.executable, "-c", BEATING, tmp_path, str(rank)]) for rank in range(2)
    ]
    try:
        while len(list(tmp_path.glob("alive-*"))) < 2:
            time.sleep(0.05)
        ranks[1].send_signal(signal.SIGSTOP)
        assert [one.wait(20) for one in ranks] == [1, -signal.SIGKILL]
    finally:
        for one in ranks:
            one.kill()
            one.wait()
    failures = {0: Failure(1, "a"), 1: Failure(-signal.SIGKILL, "a")}
    found = explain("refit", tmp_path, 2, failures)
    assert "stage refit: rank 1 of 2 failed: it has not answered for 0.6 s" in str(found)


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
    config = RunConfig(workspace=tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert num_ranks(config) == 4
    assert num_ranks(replace(config, torchrun=TorchrunConfig(processes=3))) == 3
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert num_ranks(config) == 2


@pytest.mark.parametrize(
    ("kind", "fields", "named"),
    [
        (TorchrunConfig, {"processes": -1}, "processes must be >= 1, or 0"),
        (TorchrunConfig, {"wait_seconds": 1}, "wait_seconds must be at least 5"),
        (TorchrunConfig, {"machines": 0}, "machines must be >= 1, got 0"),
        (TorchrunConfig, {"machines": 2}, "machines = 2 needs torchrun.address"),
        (TorchrunConfig, {"machines": 2, "address": "head:0"}, "needs torchrun.address"),
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
