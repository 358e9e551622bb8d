"""Kill -9 at any moment: the resumed run ends with the same bits as one never stopped."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recsys.training.checkpoint import checkpoint_paths, load_latest

KILLED = -signal.SIGKILL
NUM_STEPS = 40


class Children:
    """The forking process of training_child.py, asked one job at a time."""

    def __init__(self):
        script = Path(__file__).with_name("training_child.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"},
        )

    def run(self, folder, **job):
        self.process.stdin.write(json.dumps({"folder": str(folder), **job}) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=30)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def children():
    started = Children()
    yield started
    started.close()


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
def uninterrupted(children, tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted") / "checkpoints"
    folder.mkdir()
    started = time.monotonic()
    assert children.run(folder) == 0
    return end_of_run(folder), time.monotonic() - started


@pytest.mark.parametrize("step", sorted(random.Random(1).sample(range(NUM_STEPS), 6)))
def test_killed_at_a_step_resumes_to_the_same_bits(children, uninterrupted, tmp_path, step):
    assert children.run(tmp_path, kill_at_step=step) == KILLED
    assert children.run(tmp_path) == 0
    assert end_of_run(tmp_path) == uninterrupted[0]


def test_kill_at_every_point_of_a_write_leaves_a_whole_checkpoint(children, tmp_path):
    whole = tmp_path / "whole"
    whole.mkdir()
    assert children.run(whole, kill_at_point=-1) == 0
    num_points = int((whole / "points").read_text())
    assert num_points > 15
    loaded_steps = []
    for point in range(num_points):
        folder = tmp_path / f"point-{point}"
        folder.mkdir()
        assert children.run(folder, kill_at_point=point) == KILLED
        checkpoint = load_latest(folder)
        loaded_steps.append(checkpoint.step)
        for named in checkpoint.tensors.values():
            assert named["weight"].eq(checkpoint.step).all()
        assert not list(folder.glob(".*")), "what the killed writer left is swept"
        assert checkpoint.step in [int(path.name[5:]) for path in checkpoint_paths(folder)]
    assert loaded_steps == sorted(loaded_steps)
    assert set(loaded_steps) == {2, 3}
