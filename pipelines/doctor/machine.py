"""The checks of ``recsys doctor`` on the machine and on the optional services around it."""

from __future__ import annotations

import os
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
    if sys.version_info[:2] >= MIN_PYTHON:
        return CheckResult("python", "ok", found, ">= 3.11")
    return CheckResult("python", "fail", found, ">= 3.11", "make install PYTHON=python3.11")


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
    host, port = parts.hostname or "127.0.0.1", parts.port or 6379
    try:
        with socket.create_connection((host, port), SERVICE_SECONDS) as connection:
            connection.sendall(b"PING\r\n")
            reply = connection.recv(64).decode("ascii", "replace").strip()
    except OSError as error:
        reply = f"no answer: {error}"
    # One that asks for a password is there.
    if reply.startswith(("+PONG", "-NOAUTH")):
        return result("ok", f"{host}:{port}: {reply}")
    fix = f"redis-server --port {port} --bind 127.0.0.1"
    return result("warn", f"{host}:{port}: {reply}", fix=fix)


def check_mlflow_server(_environment: Environment) -> CheckResult:
    """Ping the server of MLFLOW_TRACKING_URI; without one, runs are kept in SQLite."""
    parts = urlsplit(os.environ.get("MLFLOW_TRACKING_URI", ""))
    result = partial(CheckResult, "mlflow server", wanted="optional: MLFLOW_TRACKING_URI")
    if parts.scheme not in ("http", "https"):
        return result("absent", "none; SQLite is used")
    # Without a user's name and password, which a URL may hold.
    server = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    health = f"{server}{parts.path.rstrip('/')}/health"
    try:
        with urllib.request.urlopen(health, timeout=SERVICE_SECONDS):
            return result("ok", f"{server} answers")
    except (OSError, ValueError) as error:
        # Runs continue without it and are sent later.
        fix = f"mlflow server --backend-store-uri sqlite:///mlflow.db --port {parts.port or 5000}"
        return result("warn", f"{server} does not answer: {error}", fix=fix)
