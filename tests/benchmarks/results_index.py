"""Write results/README.md: every committed result with its device and the goals it met or missed.

Run it as ``python tests/benchmarks/results_index.py`` after a result has changed.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

from results_file import RESULTS

INDEX = RESULTS / "README.md"
HEAD = """# Results

Every number is made by a script beside this folder, on the device that is named; run it to make the
number again. A goal was set before its number was measured, and a missed one stays in the table.
This page is written by `python tests/benchmarks/results_index.py`.
"""


def question_of(script: Path) -> str:
    """First line of a script's docstring, without its full stop."""
    text = ast.get_docstring(ast.parse(script.read_text())) or ""
    return text.split("\n")[0].rstrip(".").replace("``", "`")


def script_of(result: str) -> Path | None:
    """Name the script that writes a result: the longest name that the result's begins with."""
    scripts = RESULTS.parent.glob("benchmark_*.py")
    found = [path for path in scripts if result.startswith(path.stem.removeprefix("benchmark_"))]
    return max(found, key=lambda path: len(path.stem), default=None)


def shortened(text: str, most: int = 100) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def index() -> str:
    """Table of results with goals met, then what was missed, result by result."""
    table = ["| result | what | device | goals met |", "| --- | --- | --- | --- |"]
    missed: list[str] = []
    for path in sorted(RESULTS.glob("*.json")):
        document: dict[str, Any] = json.loads(path.read_text())
        rows = [row for row in document.get("rows", []) if row["met"] is not None]
        met = sum(row["met"] for row in rows)
        script = script_of(path.stem)
        what = "" if script is None else f"[{question_of(script)}](../{script.name})"
        goals = f"{met} of {len(rows)}" if rows else ""
        device = document.get("device", "")
        device = device if isinstance(device, str) else "; ".join(device)
        table.append(f"| [{path.stem}]({path.stem}.md) | {what} | {device} | {goals} |")
        lines = [
            f"- {shortened(row['name'])}: {row['value']:.4g} {row['unit']}".rstrip()
            + ("" if row["ratio"] is None else f" ({row['ratio']:.2f}x)")
            + f", goal {row['goal']}"
            for row in rows
            if not row["met"]
        ]
        if len(lines) > 6:
            lines = [*lines[:5], f"- and {len(lines) - 5} more in its table"]
        if lines:
            missed += ["", f"**[{path.stem}]({path.stem}.md)**", "", *lines]
    return "\n".join([HEAD, *table, "", "## Missed goals", *missed]) + "\n"


if __name__ == "__main__":
    INDEX.write_text(index())
    print(INDEX)
