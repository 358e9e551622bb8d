"""kill -9 at random moments of every stage: what comes out is what an undisturbed run makes.

A run is a fork of a process that has imported the platform, so that a kill costs seconds.
``make soak`` kills 200 times (RECSYS_PIPELINE_KILLS).
"""

import hashlib
import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import polars as pl
import psutil
import pytest

from pipelines.engine.history import KILLED, read_history
from pipelines.stages.list import STAGES
from serving.bundle.load import load_bundle
from tests.conftest import TINY_SHOP
from tests.forked.commands import RECSYS, write_program
from tests.recsys.testing.synthetic import markov_world, write_csv

NUM_KILLS = int(os.environ.get("RECSYS_PIPELINE_KILLS", "6"))
KILLS_A_RUN = 6
"""Then it is left to end, and a new one begins."""
NAMES = [stage.name for stage in STAGES]
DOMAINS = ("books", "films")
DIFFERS_BY_NATURE = {
    *("run.json", "ledger.jsonl", "releases.jsonl", "releases.head", "history.jsonl"),
    *("config.toml", "lock", "released.json", ".publish.lock"),
}
SMALL = 'embedding_dim = 16\nhidden_dim = 16\nmax_length = 10\nbackend = "torch"'
SHORT = "enabled = true\nbatch_size = 16\nmax_epochs = 4.0\ncheckpoint_seconds = 0.02"
TINY = TINY_SHOP.replace("[features]", 'users = "users.csv"\n[features]')
MANY = "checkpoint_seconds = 0.02\nmax_epochs"
SETTINGS = f"""
{TINY.replace("max_epochs", MANY)}
[sequence]
{SMALL}
[sequence_training]
{SHORT}
[generative]
{SMALL}
[generative_training]
{SHORT}
epochs_per_evaluation = 2.0
[ranker]
embedding_dim = 8
num_experts = 2
hidden_dim = 8
head_dim = 8
tile_rows = 32
backend = "torch"
[ranker_training]
{SHORT}
min_found = 5
num_candidates = 15
num_hard = 5
num_random = 5
[adapter]
domains = ["{DOMAINS[0]}"]
model = "two_tower"
rank = 4
max_epochs = 8.0
max_share = 0.5
max_drop = 1.0
[evaluation]
ks = [5, 10]
"""
Start = Callable[[Path], subprocess.Popen[bytes]]


def write_shop(folder: Path) -> Path:
    """Write a world in which the last item alone decides the next; items are of two domains."""
    write_csv(markov_world(num_users=80, num_items=24, events_per_user=10), folder)
    items = pl.read_csv(folder / "items.csv")
    domain = pl.Series("domain", [DOMAINS[row % 6 == 0] for row in range(len(items))])
    items.with_columns(domain).write_csv(folder / "items.csv")
    (folder / "shop.toml").write_text(SETTINGS)
    return folder / "shop.toml"


def digests(workspace: Path) -> dict[str, str]:
    """sha256 of every file that equal runs agree on; links by what they name."""
    found = {}
    for path in sorted(workspace.rglob("*")):
        name = str(path.relative_to(workspace))
        # The report counts the looks at the test split, of which a killed evaluation is one.
        apart = ("report/", "running/", "locks/")
        if path.name in DIFFERS_BY_NATURE or name.startswith(apart):
            continue
        if path.is_symlink():
            found[name] = str(path.readlink())
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


@pytest.fixture
def start(tmp_path: Path, forking: str) -> Start:
    """Start a run in a workspace."""
    config, program = write_shop(tmp_path), write_program(tmp_path / "recsys", forking, *RECSYS)
    environment = {**os.environ, "RECSYS_DATA_CACHE": str(tmp_path / "cache")}

    def started(workspace: Path) -> subprocess.Popen[bytes]:
        command = [program, "run", config, "--set", f"workspace={workspace}", "-q"]
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)

    return started


def kill_fork(address: str) -> None:
    """Kill the one fork of the process that listens at an address."""
    for server in psutil.Process().children():
        if address in server.cmdline():
            for fork in server.children():
                fork.kill()


def killed_in(run: subprocess.Popen[bytes], address: str, partial: Path, seconds: float) -> bool:
    """Kill a run so many seconds after its stage began; return whether it was killed."""
    stage = partial.name.removeprefix(".partial-")
    signs = (partial, partial.with_name(stage) / "manifest.json")
    while not any(sign.exists() for sign in signs):
        if run.poll() is not None:
            assert run.returncode == 0, f"{stage} was to be killed; it ended with {run.returncode}"
            return False
        time.sleep(0.002)
    time.sleep(seconds)
    if run.poll() is not None:
        return False
    kill_fork(address)
    assert run.wait() in (-signal.SIGKILL, 0)
    return True


@pytest.mark.slow
@pytest.mark.timeout(60 + 60 * NUM_KILLS)
def test_runs_killed_at_random_moments_end_as_one_that_was_not(start, forking, tmp_path):
    undisturbed = tmp_path / "undisturbed"
    assert start(undisturbed).wait() == 0
    expected = digests(undisturbed)
    assert {f"{name}/manifest.json" for name in NAMES if name != "report"} <= expected.keys()
    version = load_bundle(undisturbed / "bundles/current").version
    times = {
        name: json.loads((undisturbed / name / "run.json").read_text())["seconds"] for name in NAMES
    }
    rng, kills, runs = random.Random(int(os.environ.get("RECSYS_KILL_SEED", "7"))), Counter(), 0
    while kills.total() < NUM_KILLS:
        runs += 1
        workspace = tmp_path / f"run-{runs}"
        wanted = min(KILLS_A_RUN, NUM_KILLS - kills.total())
        # The least killed stages come first, so that all have their turn.
        seldom = sorted(NAMES, key=lambda name: (kills[name], rng.random()))[:wanted]
        for stage in sorted(seldom, key=NAMES.index):
            seconds, partial = rng.uniform(0.0, 1.1) * times[stage], workspace / f".partial-{stage}"
            kills[stage] += killed_in(start(workspace), forking, partial, seconds)
        assert start(workspace).wait() == 0
        found = digests(workspace)
        assert [name for name in expected if found.get(name) != expected[name]] == []
        assert found.keys() == expected.keys()
        assert load_bundle(workspace / "bundles/current").version == version
        assert not list((workspace / "checkpoints").iterdir())
        lines = read_history(workspace)
        assert lines[-1].exit_code == 0
        assert 1 <= sum(line.exit_code == KILLED for line in lines) <= wanted
    assert sum(map(bool, kills.values())) >= min(len(NAMES), NUM_KILLS) * 0.6
