"""Trainings on two ranks of which one is killed, to compare with the training of one process."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from features.schema import FilterConfig
from pipelines.config.run import DataConfig, RunConfig
from pipelines.config.trainings import TorchrunConfig, TwoTowerTrainingConfig
from pipelines.engine.errors import RankLostError
from pipelines.engine.runner import pick_stages, run_stages
from pipelines.stages.list import STAGES
from recsys.models.configs import TwoTowerConfig

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
    )
    return replace(config, **fields)


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
