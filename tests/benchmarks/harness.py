"""What every benchmark shares: its command line, its timing, and its result as JSON and as a table.

A script runs as a module from the repository's root, so that it imports its neighbours by name:

    python -m tests.benchmarks.kernels.benchmark_hstu_attention --help

Results go to ``results/<folder of the script>/``: one line of JSON a measurement, and a page.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

BENCHMARKS = Path(__file__).parent
ROOT = BENCHMARKS.parents[1]
RESULTS = BENCHMARKS / "results"
LEDGER = RESULTS / "test_split_ledger.jsonl"
MAX_COLUMNS = 8
STARTED = time.perf_counter()

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement, named ``case: metric``.

    ``ratio`` is this value against the peer's in the direction that makes more than 1 better;
    ``goal`` is the bar in words; ``met`` is None where no bar was set.

    ``peer_value`` is the peer's time or memory in the same unit: it makes the ratio and is named
    beside the peer. In a row of the peer's, ``ours`` is our value. ``at_least``, ``at_most`` (of
    the value) and ``min_ratio`` set the bar.
    """

    name: str
    value: float
    unit: str = ""
    peer: str | None = None
    ratio: float | None = None
    goal: str | None = None
    met: bool | None = None
    peer_value: InitVar[float | None] = None
    ours: InitVar[float | None] = None
    at_least: InitVar[float | None] = None
    at_most: InitVar[float | None] = None
    min_ratio: InitVar[float | None] = None

    def __post_init__(
        self,
        peer_value: float | None,
        ours: float | None,
        at_least: float | None,
        at_most: float | None,
        min_ratio: float | None,
    ) -> None:
        if peer_value is not None:
            self._set("peer", f"{self.peer} {peer_value:.4g} {self.unit}".rstrip())
            self._set("ratio", peer_value / self.value)
        if ours is not None:
            self._set("peer", f"ours {ours:.4g} {self.unit}".rstrip())
            self._set("ratio", self.value / ours)
        if at_least is not None:
            self._set_goal(f">= {at_least:g}", self.unit, met=self.value >= at_least)
        if at_most is not None:
            self._set_goal(f"<= {at_most:g}", self.unit, met=self.value <= at_most)
        if min_ratio is not None and self.ratio is not None:
            self._set_goal(f">= {min_ratio:g}", "x", met=self.ratio >= min_ratio)

    def _set(self, field: str, value: Any) -> None:
        object.__setattr__(self, field, value)

    def _set_goal(self, bar: str, unit: str, *, met: bool) -> None:
        self._set("goal", self.goal or bar + ("" if unit in ("", "x", "%") else " ") + unit)
        self._set("met", bool(met))


def command_line(doc: str | None) -> argparse.ArgumentParser:
    """Make a parser that shows a script's docstring as it is written, and its defaults."""

    class Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
        pass

    return argparse.ArgumentParser(description=doc, formatter_class=Help)


def device_name() -> str:
    """Name the processor and the number of usable cores."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].split(":", 1)[1].strip() if names else model
    return f"{model}, {len(os.sched_getaffinity(0))} cores"


def versions() -> str:
    return f"Python {platform.python_version()}, torch {version('torch')}"


def current_commit(checkout: Path = BENCHMARKS) -> str:
    """Short hash of the checked-out commit, with a plus if files but results differ; or unknown."""
    if shutil.which("git") is None:
        return "unknown"

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["git", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=checkout)

    commit = git("describe", "--always", "--abbrev=12").stdout.strip() or "unknown"
    if git(
        "diff", "--quiet", "HEAD", "--", ":/", ":(exclude,top)tests/benchmarks/results"
    ).returncode:
        commit += "+"
        print("the tree has uncommitted changes: commit them, then measure", file=sys.stderr)
    return commit


def timed(call: Callable[[], T], clock: Callable[[], float] = time.perf_counter) -> tuple[float, T]:
    """Seconds of a call until the GPU, if there is one, is done with it; and its result."""
    _wait_for_gpu()
    begin = clock()
    result = call()
    _wait_for_gpu()
    return clock() - begin, result


def _wait_for_gpu() -> None:
    # Not imported here: some scripts measure their own memory without it.
    if (torch := sys.modules.get("torch")) and torch.cuda.is_available():
        torch.cuda.synchronize()


def first_sentence(script: Path) -> str:
    """First line of a script's docstring, without its full stop."""
    text = ast.get_docstring(ast.parse(script.read_text())) or ""
    return text.split("\n")[0].rstrip(".").replace("``", "`")


def _cell(row: Row | None, shared: Mapping[str, Any]) -> str:
    """A measurement as ``value (peer, ratio; goal)``, less what the column's head says."""
    if row is None:
        return ""
    peer = "" if row.peer == shared["peer"] else row.peer or ""
    beside = [peer, "" if row.ratio is None else f"{row.ratio:.2f}x"]
    about = [", ".join(part for part in beside if part)]
    if row.goal and row.goal != shared["goal"]:
        about.append(f"goal {row.goal}")
    if row.met is not None:
        about.append("met" if row.met else "**missed**")
    inside = "; ".join(part for part in about if part)
    return f"{row.value:.5g}" + (f" ({inside})" if inside else "")


def _only(values: Sequence[Any]) -> Any | None:
    """The one value that all share who have one, else None."""
    different = {value for value in values if value}
    return different.pop() if len(different) == 1 else None


def _cases_table(cases: Mapping[str, Mapping[str, Row]], metrics: Sequence[str]) -> list[str]:
    """One line a case and one column a metric; what a whole column shares is in its head."""
    heads, shared = [], {}
    for metric in metrics:
        rows = [case[metric] for case in cases.values() if metric in case]
        shared[metric] = {
            field: _only([getattr(row, field) for row in rows])
            for field in ("unit", "peer", "goal")
        }
        unit, peer, goal = shared[metric].values()
        heads.append(
            metric
            + (f", {unit}" if unit else "")
            + (f", against {peer}" if peer else "")
            + (f"; goal {goal}" if goal else "")
        )
    lines = ["| case | " + " | ".join(heads) + " |", "| --- |" + " --- |" * len(metrics)]
    for name, case in cases.items():
        cells = [_cell(case.get(metric), shared[metric]) for metric in metrics]
        if any(cells):
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def _plain_table(rows: Sequence[Row]) -> list[str]:
    lines = [
        "| measured | value | peer | ratio | goal | met |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}x"
        met = {None: "", True: "yes", False: "**no**"}[row.met]
        cells = [row.name, f"{row.value:.6g} {row.unit}".strip(), row.peer or "", ratio]
        lines.append("| " + " | ".join([*cells, row.goal or "", met]) + " |")
    return lines


def as_table(rows: Sequence[Row]) -> str:
    """Lay out measurements: those named ``case: metric`` side by side, the others one a line."""
    cases: dict[str, dict[str, Row]] = {}
    for row in rows:
        case, _, metric = row.name.rpartition(": ")
        found = cases.setdefault(case, {})
        if metric in found:
            # The same measurement beside a second peer.
            metric += f" beside {re.sub(r'[:,]? [0-9].*', '', row.peer or 'another')}"
        found[metric] = row
    cases = {name: case for name, case in cases.items() if name and len(case) > 1}
    metrics = list(dict.fromkeys(metric for case in cases.values() for metric in case))
    if len(cases) < 2 or len(metrics) > 4 * MAX_COLUMNS:
        return "\n".join(_plain_table(rows))
    single = [row for row in rows if row.name.rpartition(": ")[0] not in cases]
    tables = [_plain_table(single)] if single else []
    starts = range(0, len(metrics), MAX_COLUMNS)
    tables += [_cases_table(cases, metrics[start : start + MAX_COLUMNS]) for start in starts]
    return "\n\n".join("\n".join(table) for table in tables)


def as_json(header: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """JSON with one line a measurement, fields without a value left out."""
    lines = []
    for row in rows:
        fields = {key: value for key, value in asdict(row).items() if value not in (None, "")}
        lines.append(json.dumps({**fields, "value": float(f"{row.value:.8g}")}))
    head = json.dumps(dict(header))[:-1]
    return head + ', "rows": [\n' + ",\n".join(lines) + "\n]}\n"


def page_of(name: str, header: Mapping[str, Any], rows: Sequence[Row], notes: str) -> str:
    script = header.get("script")
    made = f" Made by `python -m {script}`." if script else ""
    what = "" if script is None else first_sentence(ROOT / f"{script.replace('.', '/')}.py") + ". "
    about = f"{what}Device: {header['device']}. Commit: {header['commit']}.{made}"
    parts = [f"# {name}", about, as_table(rows) if rows else "", notes.strip()]
    return "\n\n".join(part for part in parts if part) + "\n"


def running_script() -> str:
    """Dotted name of the script that runs."""
    path = Path(sys.argv[0]).resolve()
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def write_results(
    name: str,
    rows: Sequence[Row],
    *,
    notes: str = "",
    device: str | None = None,
    commit: str | None = None,
    in_page: bool = True,
) -> None:
    """Write results/<folder of the script>/<name>.json and .md and print the page.

    Args:
        commit: What was measured, where the checkout may have moved on meanwhile.
        in_page: Whether the page has a table of the rows; not where the notes hold one.
    """
    script = running_script()
    header = {
        "script": script,
        "device": device or device_name(),
        "commit": commit or current_commit(),
        "versions": versions(),
        "seconds": round(time.perf_counter() - STARTED),
    }
    folder = RESULTS / script.split(".")[-2]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(as_json(header, rows))
    page = page_of(name, header, rows if in_page else [], notes)
    (folder / f"{name}.md").write_text(page)
    print(page)
