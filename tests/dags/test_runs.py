"""Airflow really runs synthetic days: those of the past by the backfill, then day by day."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from pipelines.engine.history import read_history
from pipelines.partitions.manifest import PartitionsManifest
from pipelines.publishing.released import Released
from tests.conftest import TINY_SHOP
from tests.dags.conftest import Airflow
from tests.forked.commands import RECSYS, write_program
from tests.year.world import world_days

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("airflow")]
SETTINGS = TINY_SHOP.replace('events = "events.csv"', 'partitions = "events"')
SETTINGS = SETTINGS.replace("items.csv", "items.parquet")


class Days:
    """A shop of five days, of which those in ``events`` have arrived."""

    def __init__(self, folder: Path, airflow: Airflow, forking: str) -> None:
        self.folder, self.airflow, self.workspace = folder, airflow, folder / "shop"
        (folder / "all").mkdir()
        (folder / "events").mkdir()
        self.days = []
        for day, events, items in world_days(days=5, users=120, items=60, events=300):
            events.write_csv(folder / "all" / f"{day}.csv")
            items.write_parquet(folder / "items.parquet")
            self.days.append(f"{day}")
        (folder / "shop.toml").write_text(SETTINGS)
        program = write_program(folder / "recsys", forking, *RECSYS)
        airflow.environment = {
            "RECSYS_COMMAND": str(program),
            "RECSYS_CONFIG": str(folder / "shop.toml"),
            "RECSYS_WORKSPACE": str(self.workspace),
            "RECSYS_DEADLINES": "off",
            "OMP_NUM_THREADS": "1",
            "RECSYS_ON_FAILURE": f"{sys.executable} -c {READ_STDIN}",
        }

    def arrive(self, *days: str) -> None:
        for day in days:
            shutil.copy(self.folder / "all" / f"{day}.csv", self.folder / "events")

    def run(self, dag: str, *more: str, exit_code: int | None = 0) -> str:
        return self.airflow("airflow", "dags", "test", dag, *more, exit_code=exit_code)

    @property
    def served(self) -> Released:
        version = (self.workspace / "bundles" / "current").readlink().name
        found = Released.read(self.workspace / "released" / version.removeprefix("bundle-"))
        assert found is not None
        return found

    def outcomes(self) -> list[tuple[str, str]]:
        return [(one.command, one.outcome) for one in read_history(self.workspace)]


READ_STDIN = "\"import sys; open('notices', 'a').write(sys.stdin.read() + chr(10))\""


def test_days_are_backfilled_then_run_day_by_day_and_a_refusal_is_handed_on(
    airflow: Airflow, forking: str, tmp_path: Path
):
    shop = Days(tmp_path, airflow, forking)
    shop.arrive(*shop.days[:4])
    params = json.dumps({"from": shop.days[0], "to": shop.days[1]})
    shop.run("recsys_backfill", "2026-02-01", "--conf", params)
    assert shop.outcomes() == [("update", "done")] * 2
    assert list(shop.served.partitions) == shop.days[:2]
    kinds = [one.details["kind"] for one in read_history(shop.workspace)]
    assert kinds == ["full", "incremental"]

    shop.run("recsys_daily", shop.days[4])
    assert list(shop.served.partitions) == shop.days[:4]
    done = dict(shop.outcomes()[2:])
    assert (done["ingest"], done["update"]) == ("done", "done")

    shop.arrive(shop.days[4])
    served = shop.served
    text = (tmp_path / "shop.toml").read_text()
    strict = "min_gain_over_popularity = 1000\nmin_compared = 2"
    refusing = text.replace("min_gain_over_popularity = -1", strict)
    (tmp_path / "shop.toml").write_text(refusing)
    output = shop.run("recsys_daily", shop.days[4], exit_code=None)
    assert "a check refused; another try would end the same" in output
    assert ("update", "refused") in shop.outcomes()
    assert shop.served == served
    notice = json.loads((airflow.home / "notices").read_text().splitlines()[0])
    assert (notice["dag"], notice["task"]) == ("recsys_daily", "update")
    assert "exit code 3" in notice["error"]
    # Nothing that arrived is lost by a refusal.
    manifest = PartitionsManifest.read(shop.workspace)
    assert manifest is not None
    assert list(manifest.partitions) == shop.days


def test_days_trained_again_stage_by_stage_and_an_hour_after_it(
    airflow: Airflow, forking: str, tmp_path: Path
):
    shop = Days(tmp_path, airflow, forking)
    shop.arrive(*shop.days[:4])
    shop.run("recsys_weekly", "2026-02-01")
    assert shop.served.kind == "full"
    assert set(shop.outcomes()) <= {("run", "done"), ("run", "nothing to do")}
    shop.arrive(shop.days[4])
    shop.run("recsys_hourly", "2026-02-01")
    assert shop.served.kind == "incremental"
    assert ("update --counts-only", "done") in shop.outcomes()
    manifest = PartitionsManifest.read(shop.workspace)
    assert manifest is not None
    assert list(manifest.partitions) == shop.days
