"""A real MLflow server on this machine, and MLflow's own client to look at what a store holds."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

START_SECONDS = 240.0
NOWHERE = "http://127.0.0.1:9"
"""Address at which nothing listens: no process is given that port."""


def free_port() -> int:
    with closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def healthy(port: int) -> bool:
    with suppress(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=30).close()
        return True
    return False


def client(uri: str) -> Any:
    """MLflow's own client."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=uri, registry_uri=uri)


@contextmanager
def mlflow_server(folder: Path, port: int) -> Iterator[int]:
    """Yield the process group of a server, up while the block runs; killed at its end."""
    log = (folder / "server.log").open("ab")
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "mlflow", "server", "--workers", "1"),
            *("--backend-store-uri", f"sqlite:///{folder / 'server.db'}"),
            *("--artifacts-destination", str(folder / "served")),
            *("--host", "127.0.0.1", "--port", str(port)),
        ],
        cwd=folder,
        env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"},
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    try:
        until = time.monotonic() + START_SECONDS
        while not healthy(port):
            told = (folder / "server.log").read_text()[-2000:]
            assert process.poll() is None, told
            assert time.monotonic() < until, f"no MLflow within {START_SECONDS} s: {told}"
            time.sleep(0.2)
        yield process.pid
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        log.close()
