"""Kill -9 at any moment: the resumed run ends with the same bits as one never stopped.

The model's tables move by rows, through the loop and its checkpoints.
"""

import json
import math
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from recsys.data.batch import Jagged, JaggedBatch
from recsys.layers.embedding.collection import EmbeddingBags, TableConfig
from recsys.training import checkpoint as checkpoint_module
from recsys.training.checkpoint import checkpoint_paths, load_latest, save_checkpoint
from recsys.training.loop import train
from recsys.training.optim import adamw
from recsys.training.passes import AdamWConfig, LoopConfig, ScheduleConfig
from recsys.training.progress import SilentProgress
from tests.recsys.training.test_checkpoint import checkpoint_of

KILLED = -signal.SIGKILL
NUM_STEPS = 24


def in_a_fork(job) -> int:
    """Run a job in a child of this process; return how it ended."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            torch.set_num_threads(1)
            job()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


class Tower(nn.Module):
    """Item i is followed by item i + 3; pooled history, with dropout, against every item."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        tables = [
            TableConfig(name="item", num_rows=31, embedding_dim=8, features=("history",)),
            TableConfig(name="out", num_rows=31, embedding_dim=8, features=("label",)),
        ]
        self.bags = EmbeddingBags(tables, "torch")
        self.query = nn.Sequential(nn.Dropout(0.2), nn.Linear(8, 8))

    def loss_at(self, step):
        start = torch.arange(step * 5, step * 5 + 12) % 30
        two = (start[:, None] + torch.tensor([0, 3])).flatten() % 30 + 1
        history = Jagged(two, torch.arange(0, 25, 2))
        label = Jagged.one_each((start + 6) % 30 + 1)
        pooled = self.bags(JaggedBatch({"history": history, "label": label}))
        scores = self.query(pooled["history"]) @ pooled["label"].T
        return functional.cross_entropy(scores, torch.arange(12))

    def evaluate(self, _):
        # Draws on purpose: validation must not break the resume of the random state either.
        return {"negative_loss": torch.rand(1).item() * 1e-3 - self.loss_at(0).item()}


def run(folder=None, loss_at=None):
    """Train; ``loss_at`` takes the model and the step."""
    model = Tower()
    config = LoopConfig(
        num_steps=NUM_STEPS,
        schedule=ScheduleConfig(learning_rate=0.02),
        eval_every=6,
        metric="negative_loss",
        patience=None,
        checkpoint_every=3,
    )
    return train(
        model,
        model.loss_at if loss_at is None else lambda step: loss_at(model, step),
        adamw(model, AdamWConfig(tables="adam")),
        config,
        evaluate=model.evaluate,
        progress=SilentProgress(),
        checkpoint_dir=folder,
    )


def end_of_run(folder):
    """Digests of weights, optimizer, random state and best weights, and the counters."""
    newest = checkpoint_paths(folder)[-1]
    manifest = json.loads((newest / "manifest.json").read_text())["manifest"]
    assert manifest["step"] == NUM_STEPS
    assert set(manifest["files"]) == {
        f"{name}.safetensors" for name in ("model", "optimizer", "random", "best")
    }
    return manifest["files"], manifest["state"]["counters"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    run(folder)
    return end_of_run(folder)


@pytest.mark.parametrize("step", [1, 7, 15, 23])
def test_killed_at_a_step_resumes_to_the_same_bits(uninterrupted, tmp_path, step):
    def loss_at(model, now):
        return kill() if now == step else model.loss_at(now)

    assert in_a_fork(lambda: run(tmp_path, loss_at)) == KILLED
    run(tmp_path)
    assert end_of_run(tmp_path) == uninterrupted


def test_a_step_with_a_bad_loss_moves_no_table():
    states = []

    def loss_at(model, step):
        states.append({name: value.clone() for name, value in model.state_dict().items()})
        return model.loss_at(step) * (math.nan if step in (3, 4) else 1.0)

    assert run(loss_at=loss_at).bad_steps == 2
    for name in states[3]:
        assert torch.equal(states[5][name], states[3][name]), name
        assert not torch.equal(states[6][name], states[5][name]), name


def save_the_third(folder, kill_at, patch):
    """Save what also deletes the first of two; pass a numbered point around each call to a disk."""
    points = []

    def pass_point():
        if len(points) == kill_at:
            kill()
        points.append(len(points))
        (folder / "points").write_text(str(len(points)))

    def around(function):
        def wrapped(*args, **kwargs):
            pass_point()
            result = function(*args, **kwargs)
            pass_point()
            return result

        return wrapped

    def in_two_halves(tensors, path):
        save_file(tensors, path)
        whole = Path(path).read_bytes()
        os.truncate(path, len(whole) // 2)
        pass_point()
        Path(path).write_bytes(whole)

    save_file = checkpoint_module.save_file
    for step in (1, 2):
        save_checkpoint(folder, checkpoint_of(step))
    patch.setattr(os, "fsync", around(os.fsync))
    patch.setattr(os, "rename", around(os.rename))
    patch.setattr(shutil, "rmtree", around(shutil.rmtree))
    patch.setattr(checkpoint_module, "save_file", around(in_two_halves))
    save_checkpoint(folder, checkpoint_of(3))


def test_kill_at_every_point_of_a_write_leaves_a_whole_checkpoint(tmp_path, monkeypatch):
    def ended(folder, kill_at):
        folder.mkdir()
        return in_a_fork(lambda: save_the_third(folder, kill_at, monkeypatch))

    assert ended(tmp_path / "whole", -1) == 0
    num_points = int((tmp_path / "whole" / "points").read_text())
    assert num_points > 15
    loaded_steps = []
    for point in range(num_points):
        folder = tmp_path / f"point-{point}"
        assert ended(folder, point) == KILLED
        checkpoint = load_latest(folder)
        loaded_steps.append(checkpoint.step)
        assert all(one.eq(checkpoint.step).all() for one in checkpoint.tensors["model"].values())
        assert not list(folder.glob(".*")), "what the killed writer left is swept"
    assert loaded_steps == sorted(loaded_steps)
    assert set(loaded_steps) == {2, 3}
