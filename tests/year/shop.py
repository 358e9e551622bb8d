"""The shop of the synthetic year: what arrives each day, and the commands a scheduler would run."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import polars as pl
from typer.testing import CliRunner

from pipelines.cli.main import app
from pipelines.partitions.manifest import PartitionsManifest
from pipelines.publishing.released import Released
from tests.year.clock import set_clock
from tests.year.world import World, WorldConfig

FIRST_DAY = date(2024, 1, 1)
"""A Monday; the whole year lies in the past of any machine that runs this."""
ROOT = Path(__file__).parents[2]
SETTINGS = """
preset = "shop"
auto.enabled = false
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
[training]
batch_size = 512
max_epochs = 4.0
device = "cpu"
[training.schedule]
learning_rate = 0.01
[evaluation]
ks = [10]
[release]
min_gain_over_popularity = -1
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
    tracking_uri: str | None = None

    def __post_init__(self) -> None:
        (self.folder / "events").mkdir(parents=True, exist_ok=True)
        (self.folder / "shop.toml").write_text(SETTINGS)
        self.random = random.Random(self.seed)
        self._runner = CliRunner()

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
        own = ["-c", str(self.folder / "shop.toml"), "-w", str(self.workspace)]
        uri = [] if self.tracking_uri is None else ["--set", f'tracking.uri="{self.tracking_uri}"']
        return [*command, *own, *uri]

    def recsys(self, *command: str, at: datetime | None = None) -> Ended:
        """Run a command in this process."""
        begin = time.perf_counter()
        set_clock(at or self.moment)
        result = self._runner.invoke(app, self.arguments(*command))
        set_clock(at or self.moment)
        return Ended(result.exit_code, result.output, time.perf_counter() - begin)

    def process(
        self, *command: str, file_bytes: int | None = None, kill_after: float | None = None
    ) -> Ended:
        """Run a command in a process of its own.

        Args:
            command: Name and options.
            file_bytes: No file can grow beyond it, as on a full disk.
            kill_after: Seconds until it is killed.
        """

        def limit() -> None:
            if file_bytes is not None:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))

        begin = time.perf_counter()
        # -c: the name of a module would be imported twice.
        script = "import sys; from tests.year.clock import main; main(sys.argv[1], sys.argv[2:])"
        child = subprocess.Popen(
            [sys.executable, "-c", script, self.moment.isoformat(), *self.arguments(*command)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=limit,
        )
        try:
            output, _ = child.communicate(timeout=kill_after)
        except subprocess.TimeoutExpired:
            child.kill()
            output, _ = child.communicate()
        return Ended(child.returncode, output, time.perf_counter() - begin)

    @property
    def served(self) -> Released | None:
        """What the served bundle was made from."""
        with suppress(OSError):
            name = (self.workspace / "bundles" / "current").readlink().name
            return Released.read(self.workspace / "released" / name.removeprefix("bundle-"))
        return None

    def ndcg(self) -> float | None:
        """N@10 of what was released last, on the events held out of it."""
        for folder in ("update", "."):
            path = self.workspace / folder / "evaluate" / "metrics.json"
            if path.exists():
                for tables in json.loads(path.read_text()).values():
                    for table in (tables.get("test"), tables.get("validation")):
                        for metrics in (table or {}).values():
                            if isinstance(metrics, dict) and "ndcg@10" in metrics:
                                return float(metrics["ndcg@10"])
        return None

    def rows_that_count(self) -> pl.DataFrame:
        """All events of the workspace, as a full run reads them."""
        manifest = PartitionsManifest.read(self.workspace)
        assert manifest is not None
        frames = [pl.read_parquet(path) for path in manifest.files(self.workspace)]
        return pl.concat(frames, how="diagonal_relaxed")
