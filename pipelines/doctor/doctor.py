"""Run the checks of ``recsys doctor``.

Libraries are imported in child processes with a time limit, so one that crashes or hangs costs a
line of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import distributions

from pipelines.doctor import machine
from pipelines.doctor.libraries import CheckResult, Environment, check_library, run_probe

# Imports are bound by disk and one core each; more at a time only contend.
PROBES_AT_A_TIME = 3
LIBRARIES = ("torch", "fbgemm", "torchrec", "faiss", "triton", "polars", "mlflow", "minilm")
CHECKS: dict[str, Callable[[Environment], CheckResult]] = {
    "python": machine.check_python,
    "memory": machine.check_memory,
    "disk": machine.check_disk,
    "threads": machine.check_threads,
    **{name: partial(check_library, name=name) for name in LIBRARIES},
    "compiler": machine.check_compiler,
    "gpu": machine.check_gpu,
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
    optional = {"absent": " (optional)"}
    lines = [f"{one.name}{optional.get(one.status, '')}: {one.fix}" for one in results if one.fix]
    failed = [one.name for one in results if one.status == "fail"]
    verdict = f"{len(failed)} checks failed: {', '.join(failed)}" if failed else "ready to run"
    return [*lines, verdict]
