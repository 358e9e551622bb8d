"""Stand in for ``subprocess`` where children that use MLflow are started: they are forked."""

import subprocess
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.forked.commands import command_server, write_program

MODULE = "pipelines.tracking.store"


def open_store(folder: str) -> None:
    """Import what the children will, by opening a store."""
    from pipelines.config.operation import TrackingConfig
    from pipelines.tracking.store import open_client

    open_client(f"sqlite:///{folder}/mlflow.db", TrackingConfig()).search_experiments()


class ForkingSubprocess:
    """The module ``subprocess``, but for runs of MLflow's children."""

    def __init__(self, folder: Path, until: ExitStack) -> None:
        self._folder, self._until, self._lock = folder, until, threading.Lock()
        self._program: Path | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    def run(self, command: list[str], **options: Any) -> subprocess.CompletedProcess:
        if command[1:3] == ["-m", MODULE]:
            with self._lock:
                self._program = self._program or self._start()
            command = [str(self._program), *command[1:]]
        return subprocess.run(command, **options)

    def _start(self) -> Path:
        """Start the process that forks, for the first that needs it."""
        first = f"from tests.forked.children import open_store; open_store({str(self._folder)!r})"
        address = self._until.enter_context(command_server(self._folder, first))
        return write_program(self._folder / "python", address)
