"""Run the checks of ``recsys doctor``.

Libraries are imported in child processes with a time limit, so one that crashes or hangs costs a
line of the table.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from pipelines.doctor.check import DISTRIBUTIONS, CheckResult, Environment, Probe, Status
from pipelines.doctor.libraries import LIBRARY_CHECKS
from pipelines.doctor.machine import MACHINE_CHECKS, SERVICE_CHECKS

STYLES: dict[Status, str] = {"ok": "green", "warn": "yellow", "fail": "bold red", "absent": "dim"}
# Imports are bound by disk and one core each; more at a time only contend.
PROBES_AT_A_TIME = 3
WIDTH = 140


def run_probe(code: str, seconds: float) -> Probe:
    """Run Python code in a child; its last line on stdout is a JSON object.

    A crash of the child, an exception and a hang are values here, never exceptions.
    """
    command = [sys.executable, "-W", "ignore", "-c", code]
    try:
        child = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, errors="replace", check=False
        )
    except subprocess.TimeoutExpired:
        return Probe(error=f"gave no answer in {seconds:.0f} s")
    except OSError as error:
        return Probe(error=f"no process could be started: {error}")
    if child.returncode < 0:
        return Probe(error=f"crashed with {signal.Signals(-child.returncode).name}")
    if child.returncode > 0:
        lines = [line for line in child.stderr.splitlines() if line.strip()]
        return Probe(error=lines[-1].strip() if lines else f"ended with code {child.returncode}")
    try:
        return Probe(values=json.loads(child.stdout.splitlines()[-1]))
    except (IndexError, json.JSONDecodeError):
        return Probe(error="printed no answer")


def installed_version(distribution: str) -> str | None:
    """Return the version of a distribution, or None."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def run_checks(seconds: float) -> list[CheckResult]:
    """Run every check."""
    environment = Environment(
        versions={name: installed_version(name) for name in DISTRIBUTIONS},
        probe=lambda code: run_probe(code, seconds),
    )

    def run(check: Callable[[Environment], CheckResult]) -> CheckResult:
        try:
            return check(environment)
        except Exception as error:
            # An unforeseen machine must not hide the other checks.
            name = check.__name__.removeprefix("check_")
            found = f"the check itself failed: {type(error).__name__}: {error}"
            return CheckResult(name, "warn", found, "an answer")

    with ThreadPoolExecutor(PROBES_AT_A_TIME) as pool:
        return list(pool.map(run, (*MACHINE_CHECKS, *LIBRARY_CHECKS, *SERVICE_CHECKS)))


def render(results: Sequence[CheckResult]) -> Group:
    """Tabulate the results, then list the commands that fix faults."""
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("", "check", "found", "wanted"):
        table.add_column(column, no_wrap=column in ("", "check"))
    for result in results:
        status = Text(result.status, style=STYLES[result.status])
        table.add_row(status, result.name, Text(result.found), Text(result.wanted))
    parts: list[Table | Text] = [table]
    for heading, statuses in (("To fix:", ("fail", "warn")), ("Optional:", ("absent",))):
        fixable = [result for result in results if result.fix and result.status in statuses]
        if fixable:
            parts.append(Text(heading, style="bold"))
            parts += [Text(f"  {result.name}: {result.fix}") for result in fixable]
    failed = [result.name for result in results if result.status == "fail"]
    verdict = f"{len(failed)} checks failed: {', '.join(failed)}" if failed else "ready to run"
    parts.append(Text(verdict, style="bold red" if failed else "bold green"))
    return Group(*parts)


def report(results: Sequence[CheckResult]) -> None:
    """Print the results."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    console.print(render(results), soft_wrap=False)
