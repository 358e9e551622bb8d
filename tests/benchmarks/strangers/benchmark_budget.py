"""Measure how a stranger's run keeps its budget: first bundle, end and peak memory by size of log.

Logs are drawn (worlds.py): Zipf items with texts of 10 to 30 words, a year of times.

    python -m tests.benchmarks.strangers.benchmark_budget --budget 10m
    ... --logs 225k --budget 5m

Writes results/strangers/budget.{json,md}; runs that are not made keep their numbers,
and ``--logs`` without any lays the page out again.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.config.auto import budget_seconds
from tests.benchmarks.harness import RESULTS, Row, command_line, current_commit, write_results
from tests.benchmarks.strangers.benchmark_strangers import run_package
from tests.benchmarks.strangers.worlds import LargeShop, shop_of

NUMBERS = RESULTS / "strangers" / "budgets.json"
LOGS = {
    "225k": LargeShop(seed=51, num_events=250_000, num_users=25_000, num_items=20_000),
    # As ratings of wines: few items, users with hundreds of events after the moment.
    "135k-heavy": LargeShop(
        seed=53, num_events=205_000, num_users=10_500, num_items=1_000, num_scenes=20, activity=0.1
    ),
    "500k": LargeShop(seed=52, num_events=545_000, num_users=60_000, num_items=50_000),
}
FIRST_S, OVERRUN, PEAK_GIB = 60.0, 1.05, 4.0


def rows_of(numbers: Mapping[str, Any]) -> list[Row]:
    """Lay out seconds and memory of each run with their bars."""
    rows = []
    for name, one in numbers.items():
        budget = budget_seconds(one["budget"])
        rows += [
            Row(name=f"{name}: events", value=one["events"]),
            Row(
                name=f"{name}: first bundle", value=one["first_bundle_s"], unit="s", at_most=FIRST_S
            ),
            Row(name=f"{name}: end", value=one["total_s"], unit="s", at_most=OVERRUN * budget),
            Row(name=f"{name}: peak memory", value=one["peak_gib"], unit="GiB", at_most=PEAK_GIB),
        ]
    return rows


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--logs", nargs="*", choices=LOGS, default=list(LOGS))
    parser.add_argument("--budget", default="10m")
    parser.add_argument("--label", default="", help="put after the name of a run")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    for log in options.logs:
        events, items = shop_of(LOGS[log])
        work = Path(tempfile.mkdtemp(prefix=f"shop-{log}-"))
        tables = {"log.csv": events, "catalogue.csv": items}
        found = run_package(tables, work, options.budget, options.settings)
        found |= {"events": events.height, "budget": options.budget, "commit": current_commit()}
        print(json.dumps(found | {"work": str(work)}), flush=True)
        numbers = json.loads(NUMBERS.read_text()) if NUMBERS.exists() else {}
        numbers[f"{log} events, {options.budget}{options.label and ', ' + options.label}"] = found
        NUMBERS.write_text(json.dumps(numbers, indent=1) + "\n")
    numbers = json.loads(NUMBERS.read_text())
    commits = dict.fromkeys(one["commit"] for one in numbers.values())
    write_results("budget", rows_of(numbers), commit=", ".join(commits))


if __name__ == "__main__":
    main()
