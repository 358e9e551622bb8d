"""Run the checks of ``recsys doctor``.

Libraries are imported in child processes with a time limit, so one that crashes or hangs costs a
line of the table.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import distributions
from pathlib import Path

from pipelines.doctor.libraries import (
    CheckResult,
    Environment,
    Status,
    check_library,
    pip,
    run_probe,
)
from pipelines.engine.formats import size
from pipelines.engine.memory import GIB, read_number
from serving.settings import usable_cpus

GPU_CODE = """
import json, torch
from recsys.kernels.choice import uses
seen = torch.cuda.is_available()
if seen:
    assert float((torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")).sum()) == 512
off = [f"{name} ({why})" for name, runs, why in uses(torch.device("cuda")) if not runs] * seen
name = torch.cuda.get_device_name() if seen else None
print(json.dumps({"cuda": torch.version.cuda, "name": name, "off": off}))
"""
COMPILER_CODE = """
import json
from recsys.kernels.one_query.library import load_library
print(json.dumps({"why": load_library().reason}))
"""


def check_python(_environment: Environment) -> CheckResult:
    """Compare the version of Python."""
    found, is_new = ".".join(map(str, sys.version_info[:3])), sys.version_info[:2] >= (3, 11)
    fix = None if is_new else "make install PYTHON=python3.11"
    return CheckResult("python", "ok" if is_new else "fail", found, ">= 3.11", fix)


def grade(num_bytes: float, enough: int, least: int) -> Status:
    """Grade a size by the recommended and the minimum number of GiB."""
    return "ok" if num_bytes >= enough * GIB else "warn" if num_bytes >= least * GIB else "fail"


def check_memory(_environment: Environment) -> CheckResult:
    """Compare the memory that this process may take with what the demo and real runs need."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    total = min(total, read_number("/sys/fs/cgroup/memory.max") or total)
    status, wanted = grade(total, 4, 2), ">= 4 GiB; 16 GiB for ten million events"
    return CheckResult("memory", status, size(total), wanted, None if status == "ok" else "free -h")


def check_disk(_environment: Environment) -> CheckResult:
    """Measure free disk space in the folder that runs are written to by default."""
    free = shutil.disk_usage(Path.cwd()).free
    status, found = grade(free, 5, 1), f"{size(free)} free in {Path.cwd()}"
    fix = None if status == "ok" else "du -xh . | sort -h | tail -20"
    return CheckResult("disk", status, found, ">= 5 GiB", fix)


def check_threads(_environment: Environment) -> CheckResult:
    """Find thread counts above the CPUs that may be used: they make everything slower."""
    cpus, requested = usable_cpus(), os.environ.get("OMP_NUM_THREADS", "")
    threads = int(requested) if requested.isdigit() else os.cpu_count() or cpus
    fix = f"export OMP_NUM_THREADS={cpus} POLARS_MAX_THREADS={cpus}" if threads > cpus else None
    found = f"{threads} threads on {cpus} usable CPUs"
    return CheckResult("threads", "warn" if fix else "ok", found, f"<= {cpus}", fix=fix)


def check_compiler(environment: Environment) -> CheckResult:
    """Compile and load the functions that answer requests, or tell why numpy and torch answer."""
    probe = environment.probe(COMPILER_CODE)
    why = probe.error or probe.values["why"]
    found = why or "requests are answered by compiled functions"
    return CheckResult("compiler", "absent" if why else "ok", found, "optional: a C compiler")


def check_gpu(environment: Environment) -> CheckResult:
    """Compare the driver with what torch sees, and list the kernels that are off."""
    has_driver, wanted = shutil.which("nvidia-smi") is not None, "optional: a driver, a CUDA build"
    if "torch" not in environment.versions or (environment.torch_is_cpu and not has_driver):
        return CheckResult("gpu", "absent", "none; everything runs on the CPU", wanted)
    probe = environment.probe(GPU_CODE)
    if probe.error:
        fix = "unset RECSYS_KERNELS_OFF" if "KERNELS_OFF" in probe.error else "nvidia-smi"
        return CheckResult("gpu", "fail" if has_driver else "warn", probe.error, wanted, fix)
    cuda, name, off = (probe.values[key] for key in ("cuda", "name", "off"))
    if name is None and has_driver:
        fix = pip("install", "--no-deps", "-r", "requirements/gpu.txt")
        found = f"torch ({f'CUDA {cuda}' if cuda else 'a CPU build'}) sees no device"
        return CheckResult("gpu", "warn", found, wanted, fix)
    if name is None:
        return CheckResult("gpu", "absent", "none; this CUDA build runs on the CPU", wanted)
    found = f"{name}, CUDA {cuda}; kernels off: {', '.join(off) or 'none'}"
    if off:
        return CheckResult("gpu", "warn", found, wanted, "unset RECSYS_KERNELS_OFF")
    return CheckResult("gpu", "ok", found, wanted)


# Imports are bound by disk and one core each; more at a time only contend.
PROBES_AT_A_TIME = 3
LIBRARIES = ("torch", "fbgemm", "torchrec", "faiss", "triton", "polars", "mlflow", "minilm")
CHECKS: dict[str, Callable[[Environment], CheckResult]] = {
    "python": check_python,
    "memory": check_memory,
    "disk": check_disk,
    "threads": check_threads,
    **{name: partial(check_library, name=name) for name in LIBRARIES},
    "compiler": check_compiler,
    "gpu": check_gpu,
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
