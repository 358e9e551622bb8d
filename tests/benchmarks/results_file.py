"""Write a benchmark's result as JSON for machines and as a table for people.

Import it beside a benchmark script: `python tests/benchmarks/benchmark_x.py` puts this folder on
the path.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measured number.

    ``ratio`` is this value against the peer's in the direction that makes more than 1 better;
    ``goal`` is the bar in words; ``met`` is None where no bar was set.
    """

    name: str
    value: float
    unit: str
    peer: str | None = None
    ratio: float | None = None
    goal: str | None = None
    met: bool | None = None


def device_name() -> str:
    """Name the processor and the number of usable cores."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].split(":", 1)[1].strip() if names else model
    return f"{model}, {len(os.sched_getaffinity(0))} cores"


def current_commit(checkout: Path | None = None) -> str:
    """Short hash of the checked-out commit, with a plus where files differ from it."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--abbrev=12"],
        capture_output=True,
        text=True,
        check=False,
        cwd=checkout or Path(__file__).parent,
    )
    return described.stdout.strip() or "unknown"


def as_table(rows: list[Row]) -> str:
    lines = [
        "| what | value | peer | ratio | goal | met |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}x"
        met = {None: "", True: "yes", False: "**no**"}[row.met]
        cells = [row.name, f"{row.value:.6g} {row.unit}".strip(), row.peer or "", ratio]
        lines.append("| " + " | ".join([*cells, row.goal or "", met]) + " |")
    return "\n".join(lines)


def write_results(
    name: str,
    rows: list[Row],
    *,
    notes: str = "",
    device: str | None = None,
    commit: str | None = None,
) -> None:
    """Write results/<name>.json and results/<name>.md and print the table.

    Args:
        commit: What was measured, where the checkout may have moved on meanwhile.
    """
    RESULTS.mkdir(exist_ok=True)
    device = device or device_name()
    commit = commit or current_commit()
    document = {"device": device, "commit": commit, "rows": [asdict(row) for row in rows]}
    (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=2) + "\n")
    page = f"# {name}\n\nDevice: {device}. Commit: {commit}.\n\n{as_table(rows)}\n"
    if notes:
        page += f"\n{notes.strip()}\n"
    (RESULTS / f"{name}.md").write_text(page)
    print(page)
