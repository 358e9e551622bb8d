"""Seconds from `import recsys` to the first lists of MovieLens-100K, and from a price to filters.

    RECSYS_DATA_MIRROR=FOLDER python -m tests.benchmarks.data.benchmark_first_list     five minutes

Each fit is a new process that reads the log as a frame of pandas, as a notebook would. The price is
changed in PostgreSQL, which `recsys items sync --every 3` reads for a server of two workers.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from pipelines.datasets.fetch import fetch
from pipelines.datasets.registry import find_dataset
from serving.bundle.manifest import publish
from serving.bundle.properties import Properties
from serving.bundle.write import write_bundle
from tests.benchmarks.harness import Row, command_line, write_results
from tests.pipelines.inputs.postgresql_server import postgresql_server
from tests.serving.server.running import running
from tests.serving.synthetic_bundle import SyntheticSize, synthetic_parts

FIRST_LIST_SECONDS, IMPORT_SECONDS, SYNC_SECONDS = 90, 0.5, 5
FIT = """
import json, sys, time
begin = time.perf_counter()
from recsys import Shop
imported = time.perf_counter()
import pandas
events = pandas.read_parquet(sys.argv[1])
shop = Shop.fit(events, budget=sys.argv[2], progress=False)
lists = shop.recommend(["1", "42"], k=10)
seconds = time.perf_counter() - begin
assert len(lists) == 20 and len(events) == 100_000
print(json.dumps([imported - begin, seconds, time.process_time()]))
"""


def fit(log: Path, budget: str) -> tuple[float, float, float]:
    """Return seconds of the import, to the lists, and of a processor."""
    command = [sys.executable, "-c", FIT, str(log), budget]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    imported, listed, processor = json.loads(said.splitlines()[-1])
    return imported, listed, processor


def sync_seconds(folder: Path, changes: int) -> list[float]:
    """Return the seconds from each change of a price until 40 requests in a row filter by it."""
    import adbc_driver_postgresql.dbapi as driver

    (folder / "parts").mkdir()
    parts = synthetic_parts(folder / "parts", SyntheticSize())
    prices = Properties.of_values({"price": "number"}, {"price": [10.0] * 40})
    parts = replace(parts, properties=prices)
    write_bundle(folder / "bundles", parts, version="v1")
    publish(folder / "bundles", "v1")
    found = []
    with postgresql_server() as url, running(folder / "bundles", folder / "log") as server:

        def run(statement: str) -> None:
            with driver.connect(url) as connection, connection.cursor() as cursor:
                cursor.execute(statement)
                connection.commit()

        run(
            "create table products as select 'item-' || n as item_id, 10.0::float8 as price "
            "from generate_series(1, 40) as g(n)"
        )
        command = [sys.executable, "-m", "pipelines.cli.main", "items", "sync"]
        command += [str(folder / "bundles"), f"{url}#products", "--every", "3"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as syncing:
            time.sleep(10)
            for number in range(1, changes + 1):
                asked = {"k": 40, "filter": {"where": "price < 5"}}
                run(f"update products set price = 1 where item_id = 'item-{number}'")
                begin = last = time.perf_counter()
                fresh = 0
                while fresh < 40 and last - begin < 60:
                    _, reply = server.get("/v1/recommend", asked)
                    is_new = len(reply["items"]) == number
                    fresh, last = (fresh + 1, last) if is_new else (0, time.perf_counter())
                found.append(last - begin)
                time.sleep(number % 3)
            syncing.terminate()
    return found


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--changes", type=int, default=8)
    asked = parser.parse_args()
    rows = []
    imports: list[float] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        log = fetch(find_dataset("movielens-100k")).table("events")
        fitted: dict[str, list[tuple[float, float, float]]] = {"30s": [], "1m": []}
        for _ in range(asked.repeats):
            for budget, runs in fitted.items():
                runs.append(fit(log, budget))
        for budget, runs in fitted.items():
            imported, listed, processor = map(statistics.median, zip(*runs, strict=True))
            name = f"Shop.fit, budget {budget}"
            goal = FIRST_LIST_SECONDS
            rows.append(Row(name=f"{name}: first list", value=listed, unit="s", at_most=goal))
            rows.append(Row(name=f"{name}: processor", value=processor, unit="s"))
            imports.append(imported)
        worst = max(sync_seconds(folder, asked.changes))
    imported = max(imports)
    rows.append(Row(name="import", value=imported, unit="s", at_most=IMPORT_SECONDS))
    rows.append(Row(name="a price: longest", value=worst, unit="s", at_most=SYNC_SECONDS))
    write_results(
        "first_list",
        rows,
        notes=f"Values of fits are medians of {asked.repeats} processes; the price is the longest "
        f"of {asked.changes} changes until 40 requests in a row filtered by it.",
    )


if __name__ == "__main__":
    main()
