"""A small run whose two-tower is trained on ranks, and a way to kill one of them."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from features.schema import FilterConfig
from pipelines.config.operation import Engine
from pipelines.config.run import DataConfig, EvaluationConfig, RunConfig
from pipelines.config.trainings import TorchrunConfig, TwoTowerTrainingConfig
from pipelines.engine.errors import RankLostError
from pipelines.engine.launch import STEP
from pipelines.engine.runner import pick_stages, run_stages
from pipelines.stages.list import STAGES
from recsys.models.configs import TwoTowerConfig

CHOSEN = pick_stages(STAGES, [], "train_two_tower")
WEIGHTS = "train_two_tower/given/two_tower/two_tower.safetensors"
FIRST_TIME = 1_700_000_000
SECONDS_FOR_A_STEP = 300


def settings(folder: Path, engine: Engine) -> RunConfig:
    """Two groups of users, each with items of its own."""
    events = folder / "events.csv"
    if not events.exists():
        lines = [
            f"u{user},i{20 * (user % 2) + (7 * user + 3 * n) % 20},{FIRST_TIME + 1000 * user + n}"
            for user in range(60)
            for n in range(12)
        ]
        events.write_text("\n".join(["user_id,item_id,event_time", *lines]) + "\n")
    return RunConfig(
        workspace=folder / engine,
        engine=engine,
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


def ranks_below(parent: int) -> dict[int, int]:
    """Process of each rank that a process started."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            above = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            variables = (place / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        rank = next((one for one in variables if one.startswith(b"RANK=")), None)
        if above == parent and rank is not None:
            found[int(rank.removeprefix(b"RANK="))] = int(place.name)
    return found


def kill_once_it_steps(workspace: Path, rank: int, process_of: Callable[[Path], int]) -> None:
    """Kill the process that is found by the file of a rank's latest step."""
    until = time.monotonic() + SECONDS_FOR_A_STEP
    while time.monotonic() < until:
        for path in workspace.glob(f"checkpoints/*/ranks/{STEP.format(rank)}"):
            has_state = any(workspace.glob("checkpoints/*/given/step-*"))
            if path.read_text().startswith("after step") and has_state:
                os.kill(process_of(path), signal.SIGKILL)
                return
        time.sleep(0.01)


def error_of_a_killed_rank(config: RunConfig, rank: int, process_of: Callable[[Path], int]) -> str:
    """Run stages, kill a process once a rank has steps and a checkpoint, and return the error."""
    arguments = (config.workspace, rank, process_of)
    killer = threading.Thread(target=kill_once_it_steps, args=arguments)
    killer.start()
    with pytest.raises(RankLostError) as caught:
        run_stages(CHOSEN, config)
    killer.join()
    return str(caught.value)


def assert_ends_where_one_process_ends(folder: Path, workspace: str, **engine: object) -> None:
    """Compare weights and manifest with those of one process; ``run.json`` names the engine."""
    one, other = (load_file(folder / name / WEIGHTS) for name in ("local", workspace))
    assert one.keys() == other.keys()
    for name, value in one.items():
        # Sums in another order, carried on by many steps of Adam.
        torch.testing.assert_close(other[name], value, rtol=2e-2, atol=5e-3, msg=name)

    def read(name: str, file: str) -> dict[str, object]:
        found: dict[str, object] = json.loads(
            (folder / name / "train_two_tower" / file).read_text()
        )
        return found

    assert read("local", "manifest.json")["config"] == read(workspace, "manifest.json")["config"]
    assert read(workspace, "run.json").items() >= engine.items()


def assert_names_the_killed_rank(error: str) -> None:
    """Check that an error names the rank, its signal, every rank's step, the remedy and the log."""
    for words in (
        "rank 1 of 2 (process ",
        "was killed by SIGKILL",
        "in stage train_two_tower: rank 0 ",
        "rank 1 after step",
        "Run the same command again",
        "log-1.txt",
    ):
        assert words in error
