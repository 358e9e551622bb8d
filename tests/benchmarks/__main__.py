"""List the benchmarks and how long each took last, or run some of them.

python -m tests.benchmarks                    the list: nothing is run
python -m tests.benchmarks kernels serving    runs the scripts of these folders
python -m tests.benchmarks all                runs every script
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.harness import BENCHMARKS, RESULTS, ROOT, command_line, first_sentence


def scripts() -> dict[str, Path]:
    """List every script by its module's name."""
    paths = sorted(BENCHMARKS.glob("*/benchmark_*.py"))
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in paths}


def seconds_by_script() -> dict[str, float]:
    """Sum the seconds that each script's results took, where they name them."""
    found: dict[str, float] = {}
    for path in RESULTS.glob("*/*.json"):
        document = json.loads(path.read_text())
        if isinstance(document, dict) and "seconds" in document:
            script = document["script"]
            found[script] = found.get(script, 0.0) + document["seconds"]
    return found


def line_of(module: str, path: Path, seconds: float | None) -> str:
    """Format one script's line of the list."""
    took = "not recorded" if seconds is None else f"{seconds / 60:.0f} min"
    return f"{module.removeprefix('tests.benchmarks.'):<45} {took:>12}  {first_sentence(path)}"


def main() -> int:
    """Run the command."""
    parser = command_line(__doc__)
    parser.add_argument("folders", nargs="*", help="run the scripts of these folders; or all")
    folders = set(parser.parse_args().folders)
    seconds = seconds_by_script()
    for module, path in scripts().items():
        print(line_of(module, path, seconds.get(module)))
        if folders & {"all", path.parent.name}:
            subprocess.run([sys.executable, "-m", module], cwd=ROOT, check=True)
    if not folders:
        print("nothing was run; name folders, or all: python -m tests.benchmarks kernels")
    return 0


if __name__ == "__main__":
    sys.exit(main())
