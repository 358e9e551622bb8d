"""``recsys doctor``: check that what the platform needs is installed and works.

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
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer
from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from pipelines.doctor.check import CheckResult, Probe, Status

STYLES: dict[Status, str] = {"ok": "green", "warn": "yellow", "fail": "bold red", "absent": "dim"}
PROBE_SECONDS = 60.0
# Imports are bound by disk and one core each; more at a time only contend.
PROBES_AT_A_TIME = 3


def run_probe(code: str, seconds: float = PROBE_SECONDS) -> Probe:
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
        number = -child.returncode
        return Probe(error=f"crashed with {signal.Signals(number).name}")
    if child.returncode > 0:
        lines = [line for line in child.stderr.splitlines() if line.strip()]
        return Probe(error=lines[-1].strip() if lines else f"ended with code {child.returncode}")
    try:
        return Probe(values=json.loads(child.stdout.splitlines()[-1]))
    except (IndexError, json.JSONDecodeError):
        return Probe(error="printed no answer")


def installed_versions(distributions: Sequence[str]) -> dict[str, str | None]:
    """Read the versions of distributions; None where one is not installed."""
    found: dict[str, str | None] = {}
    for name in distributions:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def run_checks(seconds: float = PROBE_SECONDS) -> list[CheckResult]:
    """Run every check."""
    from pipelines.doctor.environment import DISTRIBUTIONS, Environment
    from pipelines.doctor.libraries import LIBRARY_CHECKS
    from pipelines.doctor.machine import MACHINE_CHECKS, SERVICE_CHECKS

    environment = Environment(
        versions=installed_versions(DISTRIBUTIONS), probe=lambda code: run_probe(code, seconds)
    )

    def run(check: Callable[[Environment], CheckResult]) -> CheckResult:
        try:
            return check(environment)
        except Exception as error:
            # An unforeseen machine must not hide what the other checks found.
            name = check.__name__.removeprefix("check_")
            return CheckResult(
                name,
                "warn",
                f"the check itself failed: {type(error).__name__}: {error}",
                "an answer",
            )

    with ThreadPoolExecutor(PROBES_AT_A_TIME) as pool:
        return list(pool.map(run, (*MACHINE_CHECKS, *LIBRARY_CHECKS, *SERVICE_CHECKS)))


def exit_code(results: Sequence[CheckResult]) -> int:
    """Return 1 if a check failed, else 0; warnings and absent options do not count."""
    return int(any(result.status == "fail" for result in results))


def to_json(results: Sequence[CheckResult]) -> str:
    """Write the results for programs."""
    document = {"ok": exit_code(results) == 0, "checks": [asdict(result) for result in results]}
    return json.dumps(document, indent=2, ensure_ascii=False)


def render(results: Sequence[CheckResult]) -> Group:
    """Lay the results out: a table, then the commands that fix what is wrong."""
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


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    seconds: Annotated[
        float, typer.Option(min=1.0, help="Limit of each library's check.")
    ] = PROBE_SECONDS,
) -> None:
    """Check that everything is installed and works, and print the commands that fix it.

    Exit code 0 when the platform can run, 1 when something it needs is broken.

    [bold]Example[/] recsys doctor
    """
    results = run_checks(seconds)
    if as_json:
        typer.echo(to_json(results))
    else:
        console = Console(highlight=False)
        if not console.is_terminal:
            console.width = 140
        console.print(render(results), soft_wrap=False)
    raise typer.Exit(exit_code(results))
