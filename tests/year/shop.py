"""The shop of the synthetic year: what arrives each day, and the commands a scheduler would run."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import polars as pl
from typer.testing import CliRunner

from pipelines.cli.main import app
from pipelines.partitions.manifest import PartitionsManifest
from pipelines.publishing.released import Released
from tests.year.clock import FILE_BYTES, set_clock
from tests.year.world import World, WorldConfig

FIRST_DAY = date(2023, 12, 31)
"""A Sunday; the whole year lies in the past of any machine that runs this."""
ROOT = Path(__file__).parents[2]
SETTINGS = """
preset = "shop"
auto.enabled = false
device = "cpu"
[data]
partitions = "events"
items = "items.parquet"
[features]
context_features = []
[content]
encoder = "hash"
[two_tower]
embedding_dim = 16
hidden_dim = 32
max_history = 10
num_uniform_negatives = 500
backend = "torch"
[two_tower_training]
batch_size = 512
max_epochs = 4.0
[two_tower_training.schedule]
learning_rate = 0.01
[search]
[evaluation]
ks = [10]
[release]
min_gain_over_popularity = -1
max_drop_from_champion = 1.0
[updates]
full_every_days = 9
min_held_out = 60
[tracking]
request_seconds = 2
max_retries = 0
"""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    exit_code: int
    output: str
    seconds: float


@dataclass
class YearShop:
    """A shop in a folder: ``events`` and ``items.parquet`` arrive, ``run`` is its workspace."""

    folder: Path
    days: int
    seed: int = 0
    users: int = 300
    items: int = 100
    events: int = 300
    today: date = FIRST_DAY
    truth: dict[date, pl.DataFrame] = field(default_factory=dict)
    """Latest version of the events of each day, without rows that cannot be used."""
    program: Sequence[str | Path] = (sys.executable, "-m", "tests.year.clock")
    """Starts a process by a moment and a command."""
    tracked: bool = False
    """Whether runs are recorded in MLflow: seconds a day, so on some days only."""

    def __post_init__(self) -> None:
        (self.folder / "events").mkdir(parents=True, exist_ok=True)
        (self.folder / "shop.toml").write_text(SETTINGS)
        self.random = random.Random(self.seed)
        self._runner = CliRunner()

    @property
    def last_day(self) -> date:
        """The last day whose file arrives on time."""
        return FIRST_DAY + timedelta(days=self.days - 1)

    @property
    def workspace(self) -> Path:
        """The one workspace of the whole year."""
        return self.folder / "run"

    def each_day(self) -> Iterator[tuple[int, pl.DataFrame]]:
        """Let the days come: the catalogue is there, the events are handed out."""
        config = WorldConfig(
            seed=self.seed,
            days=self.days,
            users=self.users,
            items=self.items,
            events=self.events,
            first_day=FIRST_DAY,
        )
        for number, day in enumerate(World(config).days()):
            self.today = day.date
            day.items.write_parquet(self.folder / "items.parquet")
            self.truth[day.date] = day.events
            yield number, day.events

    def path_of(self, day: date) -> Path:
        """Name a day's file."""
        return self.folder / "events" / f"{day}.csv"

    def arrive(self, day: date, events: pl.DataFrame | None = None) -> Path:
        """Let a day's file arrive, or a corrected one."""
        path = self.path_of(day)
        (self.truth[day] if events is None else events).write_csv(path)
        return path

    @property
    def moment(self) -> datetime:
        """When the day's commands run: at three in the morning after it."""
        midnight = datetime.combine(self.today, datetime.min.time(), UTC)
        return midnight + timedelta(days=1, hours=3)

    def arguments(self, *command: str) -> list[str]:
        """Write a command's arguments out."""
        if command[0] in ("gc", "registry", "status"):
            return [*command, str(self.workspace)]
        own = [str(self.folder / "shop.toml"), "--set", f"workspace={self.workspace}"]
        tracking = ["--set", f"tracking.enabled={str(self.tracked).lower()}"]
        return [*command, *own, *tracking]

    def recsys(self, *command: str, at: datetime | None = None) -> Ended:
        """Run a command in this process."""
        begin = time.perf_counter()
        set_clock(at or self.moment)
        result = self._runner.invoke(app, self.arguments(*command))
        return Ended(result.exit_code, result.output, time.perf_counter() - begin)

    def process(
        self, *command: str, file_bytes: int | None = None, kill_after: float | None = None
    ) -> Ended:
        """Run a command in a process of its own.

        Args:
            command: Name and options.
            file_bytes: No file can grow beyond it, as on a full disk.
            kill_after: Seconds of the command's own work until it is killed.
        """

        begin, before = time.perf_counter(), {*self._running()}
        output = self.folder / "process.log"
        own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        if file_bytes is not None:
            own[FILE_BYTES] = str(file_bytes)
        with output.open("w") as log:
            child = subprocess.Popen(
                [*self.program, self.moment.isoformat(), *self.arguments(*command)],
                cwd=ROOT,
                env={**os.environ, **own},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            process = None
            if kill_after is not None:
                process = self._wait_until_it_works(child, before)
                with suppress(subprocess.TimeoutExpired):
                    child.wait(kill_after)
                child.kill()
            child.wait()
            while process is not None and process.exists():
                time.sleep(0.01)
        return Ended(child.returncode, output.read_text(), time.perf_counter() - begin)

    def _running(self) -> Iterator[Path]:
        """List what running commands have noted."""
        return (self.workspace / "running").glob("*-*")

    def _wait_until_it_works(
        self, child: subprocess.Popen[bytes], before: set[Path]
    ) -> Path | None:
        """Wait until a command has noted that it runs; return its process in /proc."""
        while child.poll() is None:
            for path in {*self._running()} - before:
                return Path("/proc", path.name.split("-")[1])
            time.sleep(0.02)
        return None

    @property
    def served(self) -> Released | None:
        """What the served bundle was made from."""
        with suppress(OSError):
            name = (self.workspace / "bundles" / "current").readlink().name
            return Released.read(self.workspace / "released" / name.removeprefix("bundle-"))
        return None

    def ndcg(self) -> float | None:
        """N@10 of the latest update, on the events held out of it."""
        paths = [self.workspace / folder / "evaluate/metrics.json" for folder in ("update", "")]
        found = [path for path in paths if path.exists()]
        if not found:
            return None
        latest = max(found, key=lambda path: path.stat().st_mtime)
        models = json.loads(latest.read_text())["given"]["test"]
        value = models.get("blend", {}).get("ndcg@10")
        return None if value is None else float(value)

    def rows_that_count(self) -> pl.DataFrame:
        """All events of the workspace, as a full run reads them."""
        manifest = PartitionsManifest.read(self.workspace)
        assert manifest is not None
        frames = [pl.read_parquet(path) for path in manifest.files(self.workspace)]
        return pl.concat(frames, how="diagonal_relaxed")
