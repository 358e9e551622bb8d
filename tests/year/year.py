"""A year of a shop, day by day, with nine faults a week; what came of it stands in a `Year`.

| day | fault |
| --- | --- |
| Monday | its file comes three days late |
| Tuesday | its file is cut off in the middle of a compressed block, and whole a day later |
| Wednesday | the disk is full during the update, which is run once more |
| Thursday | the update is killed at a random moment, and run once more |
| Friday | MLflow's address does not answer; on Sunday it does |
| Saturday | the clock: rows of the year 2100 and of 1970, and this machine's set back by 400 days |
| Sunday | Thursday is corrected; Saturday's file comes as Sunday's, and the true one a day later |

Each night runs update and monitor; Sundays also run every stage, registry send and gc.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from unittest import mock

import polars as pl

from pipelines.engine.history import CommandRun, read_history
from pipelines.partitions.manifest import PartitionsManifest
from tests.year.shop import Ended, YearShop

NOWHERE = "http://127.0.0.1:9"
"""Nobody listens there."""
COLUMNS = ("user_id", "item_id", "event_time", "event_type")
FAULTS = (
    "late day",
    "corrupt file",
    "full disk",
    "killed task",
    "MLflow down",
    "wrong clock in the data",
    "wrong clock of the machine",
    "corrected day",
    "duplicated partition",
)


@dataclass
class Injected:
    """A fault, and where it was found."""

    kind: str
    day: date
    found: str = ""
    """The line of the history or of partitions.json that names it; empty until it is found."""


@dataclass
class Year:
    """What became of it."""

    shop: YearShop
    faults: list[Injected] = field(default_factory=list)
    endings: Counter[str] = field(default_factory=Counter)
    """How many commands ended with each exit code, by command."""
    seconds: dict[str, float] = field(default_factory=dict)
    ndcg: list[float] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    """What ended otherwise than it should."""
    waiting: list[Callable[[], object]] = field(default_factory=list)
    """What arrives the day after."""

    @property
    def history(self) -> list[CommandRun]:
        """All commands that were run."""
        return read_history(self.shop.workspace)

    def ended(self, command: str, one: Ended, *allowed: int) -> Ended:
        """Count how a command ended."""
        self.endings[f"{command}: {one.exit_code}"] += 1
        self.seconds[command] = self.seconds.get(command, 0.0) + one.seconds
        if one.exit_code not in allowed:
            words = " ".join(one.output.split())[-300:]
            self.unexpected.append(f"{self.shop.today} {command}: {one.exit_code} {words}")
        return one

    def inject(self, kind: str, day: date | None = None) -> Injected:
        """Note a fault."""
        fault = Injected(kind, day or self.shop.today)
        self.faults.append(fault)
        return fault

    def update(self) -> Ended:
        """Run the night's update; a refused one leaves what is served."""
        return self.ended("update", self.shop.recsys("update", "-q"), 0, 3)


def run_year(shop: YearShop, say: Callable[[str], None] = lambda _line: None) -> Year:
    """Run the days in order.

    Args:
        shop: A new one.
        say: Writes a line a week.
    """
    year = Year(shop)
    for number, events in shop.each_day():
        for arrive in year.waiting:
            arrive()
        year.waiting.clear()
        weekday = shop.today.weekday()
        # What a fault leaves behind is mended within its week; the first day has a first bundle.
        if number and number - weekday + 6 < shop.days:
            NIGHTS[weekday](year, events)
        else:
            shop.arrive(shop.today)
            year.update()
        year.ended("monitor", shop.recsys("monitor"), 0, 5)
        if (value := shop.ndcg()) is not None:
            year.ndcg.append(value)
        if weekday == 6:
            say(f"{shop.today}: {sum(bool(one.found) for one in year.faults)} faults found")
    finish(year)
    return year


def found_in_history(year: Year, fault: Injected, *words: str) -> None:
    """Look for a fault in the latest lines of the history."""
    for line in reversed(year.history[-6:]):
        text = f"{line.command}: {line.outcome} {line.exit_code}: {'; '.join(line.reasons)}"
        if all(word in text for word in words):
            fault.found = f"history.jsonl: {text}"[:200]
            return


def late_day(year: Year, events: pl.DataFrame) -> None:
    """Nothing comes on Monday; Thursday's night takes both."""
    day = year.shop.today
    year.inject("late day", day)
    year.update()


def corrupt_file(year: Year, events: pl.DataFrame) -> None:
    """A compressed file that ends in the middle."""
    shop, day = year.shop, year.shop.today
    packed = gzip.compress(events.write_csv().encode())
    broken = shop.folder / "events" / f"{day}.csv.gz"
    broken.write_bytes(packed[: len(packed) // 2])
    fault = year.inject("corrupt file")
    year.update()
    found_in_history(year, fault, f"{day} was set aside")
    year.waiting.append(lambda: (broken.unlink(), shop.arrive(day)))


def full_disk(year: Year, events: pl.DataFrame) -> None:
    """No file of the update may be long."""
    shop = year.shop
    shop.arrive(shop.today)
    served = shop.served
    fault = year.inject("full disk")
    size = shop.random.choice([4_000, 8_000, 30_000])
    ended = shop.process("update", "-q", file_bytes=size)
    year.ended("update on a full disk", ended, 74)
    if shop.served != served:
        year.unexpected.append(f"{shop.today}: served changed on a full disk")
    found_in_history(year, fault, "update: failed 74")
    year.update()
    if not fault.found:
        # A line for which there was no room is written by the command behind it.
        found_in_history(year, fault, "update: failed 74")


def killed_task(year: Year, events: pl.DataFrame) -> None:
    """SIGKILL at a random moment of the update; Monday's file has come as well."""
    shop, monday = year.shop, year.shop.today - timedelta(days=3)
    shop.arrive(shop.today)
    late = [one for one in year.faults if one.kind == "late day" and one.day == monday]
    if late:
        shop.arrive(monday)
    fault = year.inject("killed task")
    ended = shop.process("update", "-q", kill_after=shop.random.uniform(0, 0.5))
    year.ended("update that is killed", ended, -9, 0)
    year.update()
    if ended.exit_code == 0:
        # It was done before its moment came: no fault.
        year.faults.remove(fault)
    else:
        found_in_history(year, fault, "update: failed 137")
    manifest = PartitionsManifest.read(shop.workspace)
    for one in late:
        arrived = manifest.partitions[f"{monday}"].arrived if manifest is not None else ""
        if arrived > f"{shop.today}":
            one.found = f"partitions.json: {monday} arrived {arrived}"


def mlflow_down(year: Year, events: pl.DataFrame) -> None:
    """Nobody answers at MLflow's address; what was recorded waits."""
    shop = year.shop
    shop.arrive(shop.today)
    fault = year.inject("MLflow down")
    shop.tracked = True
    with mock.patch.dict(os.environ, MLFLOW_TRACKING_URI=NOWHERE):
        year.update()
        year.ended(
            "registry send to an address that does not answer", shop.recsys("registry", "send"), 75
        )
    shop.tracked = False
    found_in_history(year, fault, "registry send: busy 75", "waiting")


def wrong_clock(year: Year, events: pl.DataFrame) -> None:
    """Rows of other centuries, read first while this machine's own clock is wrong."""
    shop, day = year.shop, year.shop.today
    in_data, of_machine = (
        year.inject(f"wrong clock {where}") for where in ("in the data", "of the machine")
    )
    times = [datetime(2100, 1, 1, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC)]
    wrong = events.head(2).with_columns(pl.Series("event_time", times, events["event_time"].dtype))
    shop.arrive(day, pl.concat([events, wrong]))
    back = shop.moment - timedelta(days=400)
    year.ended("ingest", shop.recsys("ingest", at=back), 0)
    found_in_history(year, of_machine, f"{day} was set aside", "by this machine's clock")
    year.update()
    manifest = PartitionsManifest.read(shop.workspace)
    assert manifest is not None
    counts = manifest.partitions[f"{day}"].quarantined
    if sum(counts.values()) == 2:
        in_data.found = f"partitions.json: {day} quarantined {json.dumps(dict(counts))}"


def corrected_and_copied(year: Year, events: pl.DataFrame) -> None:
    """Thursday is corrected, Saturday comes twice; then the week's full run."""
    shop, sunday = year.shop, year.shop.today
    thursday, saturday = sunday - timedelta(days=3), sunday - timedelta(days=1)
    corrected = year.inject("corrected day", thursday)
    shop.truth[thursday] = shop.truth[thursday].slice(10)
    shop.arrive(thursday)
    copied = year.inject("duplicated partition")
    shutil.copy(shop.path_of(saturday), shop.path_of(sunday))
    year.update()
    found_in_history(year, corrected, f"{thursday} was corrected")
    report = json.loads((shop.workspace / "update/build_features/report.json").read_text())
    if report["duplicates"] >= shop.truth[saturday].height:
        copied.found = f"report.json: {report['duplicates']} duplicates"
    year.waiting.append(lambda: shop.arrive(sunday))
    if sunday < shop.last_day:
        weekly(year)


def weekly(year: Year) -> None:
    """Run every stage, send to MLflow what waits, remove what nobody needs."""
    shop = year.shop
    year.ended("run", shop.recsys("run", "-q"), 0, 3)
    year.ended("registry send", shop.recsys("registry", "send"), 0)
    year.ended("gc", shop.recsys("gc", "--keep-days", "3"), 0)


NIGHTS = (
    late_day,
    corrupt_file,
    full_disk,
    killed_task,
    mlflow_down,
    wrong_clock,
    corrected_and_copied,
)


def finish(year: Year) -> None:
    """Let everything arrive that is outstanding, and run every stage on it."""
    shop = year.shop
    shop.today += timedelta(days=1)
    for arrive in year.waiting:
        arrive()
    year.update()
    weekly(year)


def lost_and_doubled(year: Year) -> tuple[int, int]:
    """Count events that arrived and do not count, and those that count and never arrived."""
    truth = pl.concat(list(year.shop.truth.values())).select(COLUMNS)
    counted = year.shop.rows_that_count().select(COLUMNS)
    expected, present = Counter(truth.rows()), Counter(counted.rows())
    return (expected - present).total(), (present - expected).total()


def features_rows(year: Year) -> int:
    """Count the events that the last full run's features are made from."""
    manifest = json.loads((year.shop.workspace / "build_features/manifest.json").read_text())
    return int(manifest["rows"]["in"])


def disk_bytes(folder: Path) -> int:
    """Bytes of all files, links to one file counted once."""
    files = {
        path.stat().st_ino: path.stat().st_size for path in folder.rglob("*") if path.is_file()
    }
    return sum(files.values())


def summary(year: Year) -> str:
    """List what ended otherwise than it should, and each fault with where it was found."""
    faults = (f"{one.day} {one.kind}: {one.found or 'NOT FOUND'}" for one in year.faults)
    return "\n".join([*year.unexpected, *faults])
