"""A synthetic year of daily updates and weekly full runs, with nine kinds of faults each week.

    python -m tests.benchmarks.scheduled.benchmark_year            a year: `make year`
    python -m tests.benchmarks.scheduled.benchmark_year --days 28 --dry

What happens on which day stands in tests/year/year.py; a week of it is a test.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks.harness import Row, command_line, write_results
from tests.year.shop import YearShop
from tests.year.year import FAULTS, Year, disk_bytes, lost_and_doubled, run_year, summary


def rows_of(year: Year, seconds: float) -> list[Row]:
    """Lay out what became of the year."""
    rows = [Row(name="days", value=year.shop.days)]
    for kind in FAULTS:
        found = [bool(one.found) for one in year.faults if one.kind == kind]
        goal = f"all {len(found)}"
        rows.append(Row(name=f"found: {kind}", value=sum(found), goal=goal, met=all(found)))
    lost, doubled = lost_and_doubled(year)
    served = year.shop.served
    last = max(year.shop.truth).isoformat()
    is_fresh = served is not None and max(served.partitions) == last
    rows += [
        Row(name="events", value=year.shop.rows_that_count().height),
        Row(name="events lost", value=lost, at_most=0),
        Row(name="events counted that never came", value=doubled, at_most=0),
        Row(name="commands that ended otherwise than they should", value=len(year.unexpected))
        if year.unexpected
        else Row(name="commands that ended otherwise than they should", value=0, at_most=0),
        Row(name="served up to the last day", value=is_fresh, at_least=1),
    ]
    rows += [Row(name=f"ended: {name}", value=count) for name, count in year.endings.items()]
    for place in range(0, len(year.ndcg), 28):
        part = year.ndcg[place : place + 28]
        name = f"N@10 of held-out events, days {place + 1}-{place + len(part)}"
        rows.append(Row(name=name, value=sum(part) / len(part)))
    update = year.seconds["update"] / sum(
        count for name, count in year.endings.items() if name.startswith("update: ")
    )
    rows += [
        Row(name="seconds of an update", value=update, unit="s"),
        Row(name="disk", value=disk_bytes(year.shop.workspace) / 2**20, unit="MiB"),
        Row(name="whole", value=seconds / 60, unit="min", at_most=60),
    ]
    return rows


def main() -> None:
    """Run the year and print what became of it."""
    parser = command_line(__doc__)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dry", action="store_true", help="Write no result.")
    arguments = parser.parse_args()
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        shop = YearShop(Path(folder), days=arguments.days, seed=arguments.seed)
        year = run_year(shop, lambda line: print(f"{time.perf_counter() - begin:6.0f} s  {line}"))
        print(summary(year))
        rows = rows_of(year, time.perf_counter() - begin)
    if not arguments.dry:
        write_results("synthetic_year", rows)
    sys.exit(0 if all(row.met is not False for row in rows) else 1)


if __name__ == "__main__":
    main()
