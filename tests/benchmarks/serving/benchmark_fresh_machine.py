"""Seconds of `make install`, `make demo` and `make test` in a fresh clone.

The clone lies in a temporary folder with an environment and a data cache of its own, so nothing of
this checkout helps; pip may use the machine's download cache.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks.harness import Row, command_line, current_commit, write_results

ROOT = Path(__file__).parents[3]
GOALS = {"install": 6 * 60, "demo": 5 * 60, "test": 15 * 60}


def seconds_of(verb: str, clone: Path, environment: dict[str, str]) -> float:
    begin = time.perf_counter()
    done = subprocess.run(["make", verb], cwd=clone, env=environment, check=False)
    if done.returncode != 0:
        sys.exit(f"make {verb} failed with exit code {done.returncode}")
    return time.perf_counter() - begin


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--verbs", nargs="+", default=list(GOALS), choices=list(GOALS))
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "clone"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in ("VIRTUAL_ENV", "RECSYS_DATA_MIRROR", "MAKEFLAGS", "MAKELEVEL")
        }
        commit = current_commit(clone)
        environment["RECSYS_DATA_CACHE"] = str(Path(folder) / "data")
        for verb in arguments.verbs:
            seconds = seconds_of(verb, clone, environment)
            goal = GOALS[verb]
            rows.append(
                Row(
                    name=f"make {verb} in a fresh clone",
                    value=round(seconds, 1),
                    unit="s",
                    goal=f"<= {goal // 60} min on 2 cores",
                    met=seconds <= goal,
                )
            )
    write_results("fresh_machine", rows, notes=__doc__.split("\n\n", 1)[1], commit=commit)


if __name__ == "__main__":
    main()
