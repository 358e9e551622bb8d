"""Python programs in forks of one process that has imported the platform, which takes seconds each.

A program is started by a small executable that hands its arguments, environment, folder and open
files to that process, and ends as the fork ends. If the executable is killed, so is the fork.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
IMPORTED = ("torch._dynamo", "faiss", "polars", "tests.year.clock")
LEFT_OUT = ("engine.ray_", "cli.rank")
RECSYS = ("-c", "from pipelines.cli.main import app; app()")
"""Arguments with which a program is the command line of this checkout."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"), "1")
CLIENT = """#!{python} -IS
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
arguments, environment = [*{begin!r}, *sys.argv[1:]], dict(os.environ)
request = dict(arguments=arguments, folder=os.getcwd(), environment=environment)
body = json.dumps(request).encode()
socket.send_fds(server, [len(body).to_bytes(4, "big")], [0, 1, 2])
server.sendall(body)
code = int(server.recv(16))
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


def write_program(path: Path, address: str, *begin: str) -> Path:
    """Write an executable whose arguments follow ``begin``, such as `RECSYS`."""
    path.write_text(CLIENT.format(python=sys.executable, address=address, begin=begin))
    path.chmod(0o755)
    return path


@contextmanager
def command_server(folder: Path, first: str = "import_platform()") -> Iterator[str]:
    """Start the process that forks after it has run some code; yield the address of its socket."""
    address = str(folder / "commands")
    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.forked.commands", address, first]
    with subprocess.Popen(command, cwd=ROOT, env=environment) as process:
        while not Path(address).exists():
            assert process.poll() is None, "the process that forks did not start"
            time.sleep(0.05)
        yield address
        process.terminate()


def import_platform() -> None:
    """Import all of pipelines/, and what it imports when it is needed."""
    import pipelines

    names = [one.name for one in pkgutil.walk_packages(pipelines.__path__, "pipelines.")]
    for name in (*IMPORTED, *names):
        if not any(part in name for part in LEFT_OUT):
            importlib.import_module(name)


def run_program(request: dict[str, Any], files: list[int]) -> int:
    """Run what a request asks for in this process; return its exit code."""
    for place, file in enumerate(files):
        os.dup2(file, place)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    first, *rest = request["arguments"]
    try:
        if first == "-m":
            sys.argv = [*rest]
            # The module may be one of those that are imported.
            warnings.filterwarnings("ignore", ".* found in sys.modules", RuntimeWarning)
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        elif first == "-c":
            sys.argv = ["-c", *rest[1:]]
            exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv = [first, *rest]
            runpy.run_path(first, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def start_fork(connection: socket.socket) -> int | None:
    """Fork a child for a request; return its process id, or None if the client is gone."""
    head, files, _, _ = socket.recv_fds(connection, 4, 3)
    if len(head) < 4:
        return None
    body = b""
    while len(body) < int.from_bytes(head, "big"):
        body += connection.recv(1 << 20)
    child = os.fork()
    if child == 0:
        code = 1
        with suppress(BaseException):
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            code = run_program(json.loads(body), files)
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    for file in files:
        os.close(file)
    return child


def serve(address: str) -> None:
    """Fork a child for each connection, and send its exit code; a client that leaves kills it."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"{address}.new")
    listening.listen(16)
    Path(f"{address}.new").rename(address)
    selector = selectors.DefaultSelector()
    selector.register(listening, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is listening:
                connection, _ = listening.accept()
                if (child := start_fork(connection)) is None:
                    connection.close()
                    continue
                pidfd = os.pidfd_open(child)
                selector.register(connection, selectors.EVENT_READ, (child, None, pidfd))
                selector.register(pidfd, selectors.EVENT_READ, (child, connection, pidfd))
                continue
            child, connection, pidfd = key.data
            if connection is None:
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
                selector.unregister(key.fileobj)
                continue
            _, status = os.waitpid(child, 0)
            with suppress(OSError):
                connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
            with suppress(KeyError):
                selector.unregister(connection)
            selector.unregister(pidfd)
            connection.close()
            os.close(pidfd)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    exec(sys.argv[2])
    serve(sys.argv[1])
