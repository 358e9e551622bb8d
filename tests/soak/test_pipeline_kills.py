"""kill -9 at random moments of every stage: what comes out is what an undisturbed run makes.

Run as a script, this file is the victim: it imports everything once and then forks a child for
each run, so that a kill costs seconds. ``make soak`` kills 200 times (RECSYS_PIPELINE_KILLS).
"""

import hashlib
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from pipelines.engine.history import KILLED, read_history
from pipelines.stages.list import STAGES
from serving.bundle.load import load_bundle
from tests.recsys.testing.synthetic import markov_world, write_csv

NUM_KILLS = int(os.environ.get("RECSYS_PIPELINE_KILLS", "10"))
KILLS_A_RUN = 5
"""Then it is left to end, and a new one begins."""
NAMES = [stage.name for stage in STAGES]
DOMAINS = ("books", "films")
DIFFERS_BY_NATURE = {
    *(
        "run.json",
        "ledger.jsonl",
        "releases.jsonl",
        "releases.head",
        "history.jsonl",
        "config.toml",
        "lock",
    ),
    *("released.json", ".publish.lock"),
}
SETTINGS = f"""
preset = "shop"
auto.enabled = false
device = "cpu"
tracking.enabled = false

[data]
events = "events.csv"
items = "items.csv"
users = "users.csv"

[features]
context_features = []

[content]
encoder = "hash"

[two_tower]
embedding_dim = 16
hidden_dim = 16
max_history = 10
num_uniform_negatives = 200
backend = "torch"

[two_tower_training]
batch_size = 64
max_epochs = 2.0
checkpoint_seconds = 0.02

[two_tower_training.schedule]
learning_rate = 0.01

[sequence]
embedding_dim = 16
hidden_dim = 16
max_length = 10
backend = "torch"

[sequence_training]
enabled = true
batch_size = 16
max_epochs = 4.0
checkpoint_seconds = 0.02

[sequence_training.schedule]
learning_rate = 0.01

[generative]
embedding_dim = 16
hidden_dim = 16
max_length = 10
backend = "torch"

[generative_training]
enabled = true
batch_size = 16
max_epochs = 4.0
epochs_per_evaluation = 2.0
checkpoint_seconds = 0.02

[generative_training.schedule]
learning_rate = 0.01

[ranker]
embedding_dim = 8
num_experts = 2
hidden_dim = 8
head_dim = 8
tile_rows = 32
backend = "torch"

[ranker_training]
enabled = true
min_found = 5
num_candidates = 15
num_hard = 5
num_random = 5
batch_size = 16
max_epochs = 2.0
checkpoint_seconds = 0.02

[adapter]
domains = ["{DOMAINS[0]}"]
model = "two_tower"
rank = 4
max_epochs = 8.0
max_share = 0.5
max_drop = 1.0

[adapter.schedule]
learning_rate = 0.02

[search]
dim = 4
num_steps = 20

[evaluation]
ks = [5, 10]
num_resamples = 100

[release]
min_gain_over_popularity = -1.0
"""


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


class Server:
    """The forking process: each run is a child of it, whose process id it prints."""

    def __init__(self, config: Path) -> None:
        self.config = config
        one = dict.fromkeys(("OMP_NUM_THREADS", "POLARS_MAX_THREADS", "MKL_NUM_THREADS"), "1")
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **one, "RECSYS_DATA_CACHE": str(config.parent / "cache")},
        )

    def say(self, *words: object) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([str(word) for word in words]) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def start(self, workspace: Path) -> int:
        return int(self.say("run", "-c", self.config, "-w", workspace, "-q"))

    def ended(self, pid: int, *, wait: bool) -> int | None:
        """Exit code of a child; None while it runs."""
        return json.loads(self.say("wait" if wait else "poll", pid))

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    one = Server(write_shop(tmp_path))
    yield one
    one.close()


def killed_in(server: Server, workspace: Path, stage: str, seconds: float) -> bool:
    """Run until a stage has begun, and so many seconds on; false where the run ended before."""
    pid = server.start(workspace)
    signs = (workspace / f".partial-{stage}", workspace / stage / "manifest.json")
    while not any(sign.exists() for sign in signs):
        if (code := server.ended(pid, wait=False)) is not None:
            assert code == 0, f"{stage} was to be killed; the run ended with {code}"
            return False
        time.sleep(0.002)
    time.sleep(seconds)
    if server.ended(pid, wait=False) is not None:
        return False
    os.kill(pid, signal.SIGKILL)
    assert server.ended(pid, wait=True) in (-signal.SIGKILL, 0)
    return True


@pytest.mark.slow
@pytest.mark.timeout(60 + 60 * NUM_KILLS)
def test_runs_killed_at_random_moments_end_as_one_that_was_not(
    server: Server, tmp_path: Path
) -> None:
    undisturbed = tmp_path / "undisturbed"
    assert server.ended(server.start(undisturbed), wait=True) == 0
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
            if killed_in(server, workspace, stage, rng.uniform(0.0, 1.1) * times[stage]):
                kills[stage] += 1
        assert server.ended(server.start(workspace), wait=True) == 0
        found = digests(workspace)
        assert [name for name in expected if found.get(name) != expected[name]] == []
        assert found.keys() == expected.keys()
        assert load_bundle(workspace / "bundles/current").version == version
        assert not list((workspace / "checkpoints").iterdir())
        lines = read_history(workspace)
        assert lines[-1].exit_code == 0
        assert 1 <= sum(line.exit_code == KILLED for line in lines) <= wanted
    print(f"{kills.total()} kills in {runs} runs: {dict(kills)}")  # noqa: T201
    assert len(kills) >= min(len(NAMES), NUM_KILLS) * 0.6


def run_command(arguments: list[str]) -> int:
    """Run the command line in this process."""
    from pipelines.cli.main import app

    try:
        app(arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def main() -> None:
    """Fork a child for each line that wants a run; answer whether one has ended."""
    for name in ("pipelines.cli.automatic", "pipelines.cli.main", "pipelines.tracking.recorder"):
        importlib.import_module(name)

    for line in sys.stdin:
        word, *rest = json.loads(line)
        if word == "run":
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                    code = run_command([word, *rest])
                finally:
                    os._exit(code)
            answer: int | None = child
        else:
            pid, status = os.waitpid(int(rest[0]), 0 if word == "wait" else os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        print(json.dumps(answer), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
