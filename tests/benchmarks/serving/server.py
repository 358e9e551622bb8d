"""A server in a process of its own, for benchmarks of what is served."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SERVE = (
    "-c",
    "from serving.server.serve import serve; from serving.settings import Settings; "
    "serve(Settings.from_environment())",
)
PLAIN = ("-m", "tests.benchmarks.serving.plain_server")
IMPLICIT = (str(Path(__file__).with_name("implicit_server.py")),)
TIMEOUT_SECONDS = 120.0
CPUS: set[int] = set()
"""Processors of the servers that are started; those of this process if empty."""


@dataclass(frozen=True)
class Served:
    """A running server."""

    port: int
    pid: int
    start_seconds: float
    """From its start until it was ready."""

    def reply(self, path: str) -> Any:
        return reply_of(self.port, path)


@contextmanager
def serving(
    bundles_dir: Path, command: Sequence[str] = SERVE, python: str = sys.executable, **settings: str
) -> Iterator[Served]:
    """Run a server with settings of its environment until it is ready, and end it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {"RECSYS_BUNDLES": str(bundles_dir), "RECSYS_PORT": str(port), **settings}
    environment = {"RECSYS_EXPOSE_USERS": "true", "RECSYS_LOG_REQUESTS": "false", **environment}
    begin = time.monotonic()
    process = subprocess.Popen(
        [python, *command], env={**os.environ, **environment}, stderr=subprocess.DEVNULL
    )
    try:
        if CPUS:
            os.sched_setaffinity(process.pid, CPUS)
        while reply_of(port, "/readyz") is None:
            if time.monotonic() > begin + TIMEOUT_SECONDS or process.poll() is not None:
                raise RuntimeError("the server does not reply")
            time.sleep(0.05)
        yield Served(port, process.pid, time.monotonic() - begin)
    finally:
        process.terminate()
        process.wait()


def reply_of(port: int, path: str, body: dict[str, Any] | None = None) -> Any:
    """Reply of the server as JSON; None without one, or where it is an error."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", data=data, headers={"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            return json.loads(reply.read())
    except (urllib.error.URLError, ConnectionError):
        return None
