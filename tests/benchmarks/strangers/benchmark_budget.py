"""Measure how a stranger's run keeps its budget: first bundle, end and peak memory.

    RECSYS_DATA_MIRROR=... python -m tests.benchmarks.strangers.benchmark_budget --budgets 20s 5m

Writes results/strangers/budget.{json,md}; runs that are not made keep their numbers.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from pipelines.config.operation import budget_seconds
from tests.benchmarks.harness import RESULTS, Row, command_line, write_results
from tests.benchmarks.strangers.benchmark_strangers import QUIET, run_package
from tests.benchmarks.strangers.sets import SETS, named_files, without_last

FIRST_S, OVERRUN, PEAK_GIB = 60.0, 1.05, 4.0
KNOWN = RESULTS / "strangers" / "budget.json"


def rows_of(name: str, budget: str) -> list[Row]:
    """Run a set without its last events, and lay out seconds and memory with their bars."""
    log = SETS[name].make()
    parted, work = without_last(log.events), Path(tempfile.mkdtemp(prefix=f"{name}-"))
    found = run_package(named_files(parted.given, log.items, SETS[name].names), work, budget, [])
    cores = "quiet cores" if found["others"] < QUIET else f"others used {found['others']:.1f} cores"
    case, end = f"{name}, {budget}, {cores}", OVERRUN * budget_seconds(budget)
    first = min(FIRST_S, end)
    return [
        Row(name=f"{case}: events", value=parted.given.height),
        Row(name=f"{case}: first bundle", value=found["first_bundle_s"], unit="s", at_most=first),
        Row(name=f"{case}: end", value=found["total_s"], unit="s", at_most=end),
        Row(name=f"{case}: peak memory", value=found["peak_gib"], unit="GiB", at_most=PEAK_GIB),
    ]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--sets", nargs="*", choices=SETS, default=["films-dated"])
    parser.add_argument("--budgets", nargs="*", default=["20s", "60s", "5m"])
    options = parser.parse_args()
    rows = [Row(**one) for one in json.loads(KNOWN.read_text())["rows"]] if KNOWN.exists() else []
    for name in options.sets:
        for budget in options.budgets:
            new = rows_of(name, budget)
            names = {row.name for row in new}
            rows = [row for row in rows if row.name not in names] + new
    write_results("budget", rows)


if __name__ == "__main__":
    main()
