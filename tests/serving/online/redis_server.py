"""A redis-server of the test's own: it can be killed, frozen and started again."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import psutil
import pytest

CHOSEN = os.environ.get("RECSYS_TEST_REDIS", "")
"""Path of the server to test, such as a valkey-server beside an installed redis-server."""
PROGRAM = shutil.which(CHOSEN or "redis-server") or shutil.which("valkey-server")
needs_redis = pytest.mark.skipif(
    PROGRAM is None, reason="no redis-server on PATH: apt-get install redis-server"
)
START_SECONDS = 120.0


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


class RedisServer:
    """Listens on a port of loopback; keeps its data in a folder, by default every write of it."""

    def __init__(self, folder, *options, port=None):
        self.folder = Path(folder)
        self.options = options
        self.port = port or free_port()
        self.process = None
        self.start()

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self):
        assert PROGRAM is not None
        command = [PROGRAM, "--port", self.port, "--bind", "127.0.0.1", "--dir", self.folder]
        command += ["--save", "", "--appendonly", "yes", "--appendfsync", "always", *self.options]
        with (self.folder / "redis.log").open("ab") as log:
            self.process = subprocess.Popen([str(part) for part in command], stdout=log)
        deadline = time.monotonic() + START_SECONDS
        while self.ask(b"PING")[:1] not in (b"+", b"-") or self.ask(b"PING")[:5] == b"-LOAD":
            assert self.process.poll() is None, (self.folder / "redis.log").read_text()
            assert time.monotonic() < deadline, "redis-server does not start"
            time.sleep(0.01)

    def ask(self, line):
        """Send one line, as a client that is not the one under test."""
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), 5) as s,
        ):
            s.sendall(line + b"\r\n")
            return s.recv(4096)
        return b""

    def cpu_seconds(self):
        times = psutil.Process(self.process.pid).cpu_times()
        return times.user + times.system

    def kill(self):
        self.process.kill()
        self.process.wait()

    def freeze(self):
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self):
        self.process.send_signal(signal.SIGCONT)

    def restart(self, *, keep_data=True):
        self.kill()
        if not keep_data:
            shutil.rmtree(self.folder / "appendonlydir", ignore_errors=True)
        self.start()


class SlowWire:
    """Passes bytes on to a port, those of replies one at a time with a pause before each."""

    def __init__(self, port, seconds):
        self._to, self._seconds = port, seconds
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        with client, socket.create_connection(("127.0.0.1", self._to)) as redis:
            threading.Thread(target=self._forward, args=(client, redis), daemon=True).start()
            with contextlib.suppress(OSError):
                while data := redis.recv(65536):
                    for byte in data:
                        time.sleep(self._seconds)
                        client.sendall(bytes([byte]))

    @staticmethod
    def _forward(client, redis):
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                redis.sendall(data)
            redis.shutdown(socket.SHUT_RDWR)

    def close(self):
        self._server.close()
