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
from functools import partial
from importlib.metadata import distributions

from pipelines.doctor import libraries, machine
from pipelines.doctor.check import CheckResult, Environment, Probe

# Imports are bound by disk and one core each; more at a time only contend.
PROBES_AT_A_TIME = 3


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


LIBRARIES = ("torch", "fbgemm", "torchrec", "faiss", "triton", "polars", "mlflow")
CHECKS: dict[str, Callable[[Environment], CheckResult]] = {
    "python": machine.check_python,
    "memory": machine.check_memory,
    "disk": machine.check_disk,
    "threads": machine.check_threads,
    **{name: partial(libraries.check_library, name=name) for name in LIBRARIES},
    "cuda": libraries.check_cuda,
    "kernels": libraries.check_kernels,
    "minilm": libraries.check_minilm,
    "redis": machine.check_redis,
    "mlflow server": machine.check_mlflow_server,
}


def run_checks(seconds: float) -> list[CheckResult]:
    """Run every check."""
    versions = {one.name.lower(): one.version for one in distributions() if one.name}
    environment = Environment(versions, lambda code: run_probe(code, seconds))

    def run(name: str) -> CheckResult:
        try:
            return CHECKS[name](environment)
        except Exception as error:
            # An unforeseen machine must not hide the other checks.
            found = f"the check itself failed: {type(error).__name__}: {error}"
            return CheckResult(name, "warn", found, "an answer")

    with ThreadPoolExecutor(PROBES_AT_A_TIME) as pool:
        return list(pool.map(run, CHECKS))


def fixes(results: Sequence[CheckResult]) -> list[str]:
    """List the commands that fix faults, then the verdict."""
    lines = []
    for heading, statuses in (("To fix:", ("fail", "warn")), ("Optional:", ("absent",))):
        fixable = [one for one in results if one.fix and one.status in statuses]
        lines += [heading] if fixable else []
        lines += [f"  {one.name}: {one.fix}" for one in fixable]
    failed = [one.name for one in results if one.status == "fail"]
    verdict = f"{len(failed)} checks failed: {', '.join(failed)}" if failed else "ready to run"
    return [*lines, verdict]
