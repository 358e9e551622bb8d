"""Measure how a stranger's run keeps its budget: first bundle, end and peak memory by size of log.

Logs are drawn (worlds.py): Zipf items with texts of 10 to 30 words, a year of times.

    python -m tests.benchmarks.strangers.benchmark_budget --budget 10m
    ... --logs 225k --budget 5m

Writes results/strangers/budget.{json,md}; runs that are not made keep their numbers,
and ``--logs`` without any lays the page out again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.config.operation import budget_seconds
from tests.benchmarks.harness import Row
from tests.benchmarks.strangers.benchmark_strangers import run_package
from tests.benchmarks.strangers.kept_runs import run_logs
from tests.benchmarks.strangers.worlds import LargeShop, shop_of

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


def measured(log: str, work: Path, budget: str, settings: list[str]) -> dict[str, Any]:
    """Run a drawn shop's log."""
    events, items = shop_of(LOGS[log])
    tables = {"log.csv": events, "catalogue.csv": items}
    return run_package(tables, work, budget, settings) | {"events": events.height}


if __name__ == "__main__":
    run_logs(__doc__, list(LOGS), measured, rows_of, name="budget", budget="10m")
