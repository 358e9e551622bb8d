"""The checks of ``recsys doctor`` on the machine and on the optional services around it."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import sys
import urllib.request
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from pipelines.doctor.check import CheckResult, Environment, Status
from pipelines.engine.formats import size
from pipelines.engine.memory import GIB, read_number
from serving.settings import usable_cpus

MIN_PYTHON = (3, 11)
SERVICE_SECONDS = 3.0


def check_python(_environment: Environment) -> CheckResult:
    """Compare the version of Python."""
    found = ".".join(str(part) for part in sys.version_info[:3])
    good = sys.version_info[:2] >= MIN_PYTHON
    fix = None if good else "make install PYTHON=python3.11"
    return CheckResult("python", "ok" if good else "fail", found, ">= 3.11", fix=fix)


def grade(num_bytes: float, enough: int, least: int) -> Status:
    """Grade a size by the recommended and the minimum number of GiB."""
    return "ok" if num_bytes >= enough * GIB else "warn" if num_bytes >= least * GIB else "fail"


def check_memory(_environment: Environment) -> CheckResult:
    """Compare the memory that this process may take with what the demo and real runs need."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = read_number("/sys/fs/cgroup/memory.max")
    limit = limit or read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes")
    total = min(found, limit) if limit else found
    status, wanted = grade(total, 4, 2), ">= 4 GiB; 16 GiB for ten million events"
    fix = None if status == "ok" else "free -h"
    return CheckResult("memory", status, size(total), wanted, fix=fix)


def check_disk(_environment: Environment) -> CheckResult:
    """Measure free disk space in the folder that runs are written to by default."""
    free = shutil.disk_usage(Path.cwd()).free
    status, found = grade(free, 5, 1), f"{size(free)} free in {Path.cwd()}"
    fix = None if status == "ok" else "du -xh . | sort -h | tail -20"
    return CheckResult("disk", status, found, ">= 5 GiB", fix=fix)


def check_threads(_environment: Environment) -> CheckResult:
    """Find thread counts above the CPUs that may be used: they make everything slower."""
    cpus = usable_cpus()
    requested = os.environ.get("OMP_NUM_THREADS", "")
    threads = int(requested) if requested.isdigit() else os.cpu_count() or cpus
    status: Status = "ok" if threads <= cpus else "warn"
    export = f"export OMP_NUM_THREADS={cpus} POLARS_MAX_THREADS={cpus}"
    found, fix = f"{threads} threads on {cpus} usable CPUs", None if status == "ok" else export
    return CheckResult("threads", status, found, f"<= {cpus}", fix=fix)


def check_redis(_environment: Environment) -> CheckResult:
    """Ping the Redis of RECSYS_STORE; without one, SQLite keeps what visitors do."""
    wanted = "optional: RECSYS_STORE=redis://..., or redis-server on PATH"
    result = partial(CheckResult, "redis", wanted=wanted)
    url = os.environ.get("RECSYS_STORE", "")
    if not url.startswith("redis://"):
        if program := shutil.which("redis-server"):
            return result("ok", program)
        return result("absent", "not installed", fix="apt-get install redis-server")
    parts = urlsplit(url)
    address = (parts.hostname or "127.0.0.1", parts.port or 6379)
    where = f"{address[0]}:{address[1]}"
    try:
        with socket.create_connection(address, SERVICE_SECONDS) as connection:
            connection.sendall(b"PING\r\n")
            reply = connection.recv(64).decode("ascii", "replace").strip()
    except OSError as error:
        reply = f"no answer: {error}"
    # One that asks for a password is there.
    if reply.startswith(("+PONG", "-NOAUTH")):
        return result("ok", f"{where}: {reply}")
    fix = f"redis-server --port {address[1]} --bind 127.0.0.1"
    return result("warn", f"{where}: {reply}", fix=fix)


def check_mlflow_server(_environment: Environment) -> CheckResult:
    """Ping the server of MLFLOW_TRACKING_URI; without one, runs are kept in SQLite."""
    wanted, url = "optional: MLFLOW_TRACKING_URI", os.environ.get("MLFLOW_TRACKING_URI", "")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        return CheckResult("mlflow server", "absent", "none; SQLite is used", wanted)
    # Without a user's name and password, which a URL may hold.
    where = parts.hostname or url
    where = f"{parts.scheme}://{where}" + (f":{parts.port}" if parts.port else "")
    try:
        health = f"{where}{parts.path.rstrip('/')}/health"
        with urllib.request.urlopen(health, timeout=SERVICE_SECONDS) as reply:
            status: Status = "ok" if reply.status == 200 else "warn"
            found = f"{where} answers"
    except (OSError, ValueError) as error:
        # Runs continue without it and are sent later.
        status, found = "warn", f"{where} does not answer: {error}"
    fix = f"mlflow server --backend-store-uri sqlite:///mlflow.db --port {parts.port or 5000}"
    return CheckResult("mlflow server", status, found, wanted, fix=None if status == "ok" else fix)


def check_airflow(_environment: Environment) -> CheckResult:
    """Look for the environment of Airflow, which cannot be this one."""
    folder = Path(os.environ.get("RECSYS_AIRFLOW_VENV", ".venv-airflow"))
    wanted = "optional: RECSYS_AIRFLOW_VENV or .venv-airflow"
    result = partial(CheckResult, "airflow", wanted=wanted)
    found = sorted(folder.glob("lib/python*/site-packages/apache_airflow-*.dist-info"))
    if not found:
        python = shlex.quote(str(folder / "bin/python"))
        fix = f"python3.11 -m venv {shlex.quote(str(folder))} && "
        fix += f"{python} -m pip install --no-deps -r requirements/airflow.txt"
        return result("absent", f"not in {folder}", fix=fix)
    number = found[0].name.removeprefix("apache_airflow-").removesuffix(".dist-info")
    return result("ok", f"{number} in {folder}")


def check_chromium(_environment: Environment) -> CheckResult:
    """Look for a browser."""
    result = partial(CheckResult, "chromium", wanted="optional: tests of the web pages")
    if program := shutil.which("chromium") or shutil.which("google-chrome"):
        return result("ok", program)
    return result("absent", "not installed", fix="apt-get install chromium")


MACHINE_CHECKS = (check_python, check_memory, check_disk, check_threads)
SERVICE_CHECKS = (check_redis, check_mlflow_server, check_airflow, check_chromium)
