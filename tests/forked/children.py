"""Stand in for ``subprocess`` where children that use MLflow are started: they are forked."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from functools import cache
from pathlib import Path
from typing import Any

from tests.forked.server import MODULES

ROOT = Path(__file__).parents[2]


class Forks:
    """One server for all tests of a process, started by the first that needs it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: subprocess.Popen[str] | None = None

    def run(self, command: list[str], *, timeout: float, **_: Any) -> subprocess.CompletedProcess:
        """Run a module as ``subprocess.run`` does with captured text."""
        with self._lock, tempfile.TemporaryDirectory() as folder:
            outputs = {name: f"{folder}/{name}" for name in ("stdout", "stderr")}
            request = {
                "module": command[2],
                "arguments": command[3:],
                "environment": dict(os.environ),
                "folder": str(Path.cwd()),
                **outputs,
            }
            stdin, stdout = self._pipes()
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()
            child = int(stdout.readline())
            timer = threading.Timer(timeout, os.kill, (child, signal.SIGKILL))
            timer.start()
            code = int(stdout.readline())
            late = not timer.is_alive()
            timer.cancel()
            texts = {name: Path(path).read_text() for name, path in outputs.items()}
        if late:
            raise subprocess.TimeoutExpired(command, timeout)
        return subprocess.CompletedProcess(command, code, **texts)

    def _pipes(self) -> tuple[Any, Any]:
        if self._server is None or self._server.poll() is not None:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "tests.forked.server"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        return self._server.stdin, self._server.stdout


@cache
def forks() -> Forks:
    return Forks()


class ForkingSubprocess:
    """The module ``subprocess``, but for runs of MLflow's children."""

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    @staticmethod
    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess:
        if command[1:2] == ["-m"] and command[2] in MODULES:
            return forks().run(command, **options)
        return subprocess.run(command, **options)
