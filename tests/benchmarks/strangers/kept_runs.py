"""Command line of benchmarks that run a budget on some logs and keep the numbers of the others."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.harness import RESULTS, Row, command_line, current_commit, write_results


def run_logs(
    description: str | None,
    logs: Sequence[str],
    measure: Callable[[str, Path, str, list[str]], dict[str, Any]],
    rows_of: Callable[[Mapping[str, Any]], list[Row]],
    *,
    name: str,
    budget: str,
) -> None:
    """Measure the logs that the command line names and write results/strangers/<name>.

    Args:
        logs: Names of all logs.
        measure: Runs a log in a new folder, given its name, the folder, budget and settings.
        rows_of: Lays out the numbers of all runs, by log, budget and label.
        name: Of the result; its numbers are kept in <name>s.json.
        budget: Default of ``--budget``.
    """
    parser = command_line(description)
    parser.add_argument("--logs", nargs="*", choices=logs, default=list(logs))
    parser.add_argument("--budget", default=budget)
    parser.add_argument("--label", default="", help="put after the name of a run")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    kept = RESULTS / "strangers" / f"{name}s.json"
    numbers = json.loads(kept.read_text()) if kept.exists() else {}
    for log in options.logs:
        work = Path(tempfile.mkdtemp(prefix=f"{name}-{log}-"))
        found = measure(log, work, options.budget, options.settings)
        found |= {"budget": options.budget, "commit": current_commit()}
        print(json.dumps(found | {"work": str(work)}), flush=True)
        numbers[f"{log}, {options.budget}{options.label and ', ' + options.label}"] = found
        kept.write_text(json.dumps(numbers, indent=1) + "\n")
    commits = dict.fromkeys(one["commit"] for one in numbers.values())
    write_results(name, rows_of(numbers), commit=", ".join(commits))
