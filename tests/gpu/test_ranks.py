"""Two ranks by a user's command: what ends one ends the command, with its name and a code."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tests.recsys.testing.synthetic import markov_world, write_csv

pytest.importorskip("polars")
from tests.pipelines.engine.ranks import find_rank

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]
ROOT = Path(__file__).parents[2]
SHOP = """
preset = "shop"
auto.enabled = false
tracking.enabled = false
engine = "torchrun"
data.events = "events.csv"
features.context_features = []
content.encoder = "hash"
torchrun = { processes = 2, wait_seconds = 120, shard_from = 0 }
two_tower = { embedding_dim = 16, hidden_dim = 32, max_history = 10 }
two_tower_training = { batch_size = 64, max_epochs = EPOCHS, checkpoint_seconds = 0.5 }
"""
OTHER_VERSION = """
import os
if os.environ.get("RANK") == "1":
    from importlib import metadata
    whole = metadata.version
    metadata.version = lambda name: "2.0.0" if name == "torch" else whole(name)
"""


@contextmanager
def training(folder: Path, epochs: float) -> Iterator[subprocess.Popen[str]]:
    """Start the command in a folder of its own."""
    if not (folder / "events.csv").exists():
        write_csv(markov_world(num_users=200), folder)
    (folder / "shop.toml").write_text(SHOP.replace("EPOCHS", str(epochs)))
    command = [sys.executable, "-m", "pipelines.cli.main", "run", "shop.toml"]
    paths = os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [*command, "--until", "train_two_tower"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Return the exit code, and the words of its output between single spaces."""
    text, _ = process.communicate(timeout=150)
    return process.returncode, " ".join(text.split())


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGKILL, "rank 1 of 2 was killed by SIGKILL"),
        (signal.SIGSTOP, "rank 1 of 2 failed: it has not answered for 25 s"),
    ],
)
def test_a_rank_that_ends_or_stops_is_named_within_a_minute(tmp_path, number, words):
    with training(tmp_path, 1e5) as process:
        while not any(tmp_path.glob("**/checkpoints/*/given/step-*")):
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.1)
        rank = find_rank(1, lambda _, line: str(tmp_path) in line)
        assert rank is not None
        begun = time.monotonic()
        os.kill(rank, number)
        code, text = ended(process)
    assert (code, time.monotonic() - begun < 60) == (72, True)
    assert words in text


def test_a_rank_with_another_torch_is_refused(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(OTHER_VERSION)
    with training(tmp_path, 1) as process:
        code, text = ended(process)
    assert code == 2
    assert "the nodes have different versions of torch: 2.0.0 on" in text


@pytest.mark.parametrize("left", [100 << 20, 800 << 20])
def test_a_full_gpu_of_two_is_named_and_then_both_train(tmp_path, left):
    """With less memory than a process needs to begin, and with less than a training's."""
    with torch.cuda.device(1):
        free, _ = torch.cuda.mem_get_info()
        held = torch.empty(free - left, dtype=torch.uint8, device="cuda:1")
        with training(tmp_path, 1) as process:
            code, text = ended(process)
        assert code == 71
        assert "rank 1 on" in text
        del held
        torch.cuda.empty_cache()
    with training(tmp_path, 1) as process:
        assert ended(process)[0] == 0
