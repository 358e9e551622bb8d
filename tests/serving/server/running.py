"""A server in a process of its own, and a client that counts what it gets."""

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

import psutil

SERVE = (
    "from serving.server.serve import serve; from serving.settings import Settings; "
    "serve(Settings.from_environment())"
)
START_SECONDS = 180.0


def wait_for(true, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)
    return found


def _children_of(processes):
    """Children of those that have not ended meanwhile."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            found += process.children()
    return found


class RunningServer:
    """Starts a server and asks it."""

    def __init__(self, bundles_dir, log, descriptors=None, program=SERVE, **settings):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        given = {"BUNDLES": bundles_dir, "PORT": self.port, "WORKERS": 2, "POLL_SECONDS": 0.05}
        given |= {"LOG_REQUESTS": "false", "EXPOSE_USERS": "false"}
        given |= {name.upper(): value for name, value in settings.items()}
        environment = {f"RECSYS_{name}": str(value) for name, value in given.items()}
        self.log, self.bundles, self.read_to, self.noted = Path(log), bundles_dir, 0, {}

        def limited():
            if descriptors is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

        with self.log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program],
                env={**os.environ, **environment},
                stderr=errors,
                preexec_fn=limited,
            )
        self.url = f"http://127.0.0.1:{self.port}"

    def until_ready(self):
        wait_for(lambda: self.process.poll() is not None or self.ready() == 200, START_SECONDS)
        assert self.process.poll() is None, self.log.read_text()
        return self

    def ready(self):
        return self.get("/readyz")[0]

    def state(self):
        return self.get("/readyz")[1]

    def get(self, path, body=None, timeout=10.0):
        """Status and document of a reply; None and why where there is none."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data=data, headers={"content-type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout) as reply:
                return reply.status, json.loads(reply.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())
        except (urllib.error.URLError, OSError) as error:
            return None, error

    def events(self, name=None):
        """Lines of the log since `note`, of one event."""
        lines = [json.loads(line) for line in self.log.read_bytes()[self.read_to :].splitlines()]
        return [line for line in lines if name in (None, line["event"])]

    def note(self):
        """Begin to count, and to read the log, from this moment."""
        self.read_to, self.noted = self.log.stat().st_size, self.state()

    def count(self, name):
        """How much a number of the state has grown since `note`."""
        return self.state()[name] - self.noted.get(name, 0)

    def processes(self):
        """The zygote, its loaders and their workers."""
        zygotes = psutil.Process(self.process.pid).children()
        logs = self.request_logs()
        loaders = [one for one in _children_of(zygotes) if one not in logs]
        return zygotes, loaders, _children_of(loaders)

    def request_logs(self):
        """What writes served lists: of the zygote's children the one without a loader's socket."""
        found = []
        for one in _children_of(psutil.Process(self.process.pid).children()):
            with contextlib.suppress(psutil.NoSuchProcess):
                kinds = {end.type for end in one.net_connections(kind="unix")}
                found += [] if socket.SOCK_SEQPACKET in kinds else [one]
        return found

    def loaders(self):
        """Processes that hold a bundle and answer nothing: those that forked the workers."""
        found = []
        for one in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                found += [one] if one.children() else []
        return found[1:]

    def stop(self):
        """End as a service manager does; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


@contextlib.contextmanager
def running(bundles_dir, log, **settings):
    server = RunningServer(bundles_dir, log, **settings)
    try:
        yield server.until_ready()
    finally:
        server.stop()


async def post(port, document, path="/v1/recommend", headers=None):
    """One request on a connection of its own: status, headers and body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        body = json.dumps(document).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        writer.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode())
        writer.write(body)
        await writer.drain()
        reply = await reader.read()
    finally:
        writer.close()
    head, _, body = reply.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return int(status.split()[1]) if status else None, headers, body


class Load:
    """Requests of several connections, each sending its next one once it has a reply."""

    def __init__(self, server, connections=4):
        self.server, self.connections = server, connections
        self.statuses = Counter()
        self.ended = asyncio.Event()
        self.bundles = Counter()

    async def __aenter__(self):
        self._tasks = [asyncio.create_task(self._ask(n)) for n in range(self.connections)]
        return self

    async def __aexit__(self, *_):
        self.ended.set()
        await asyncio.gather(*self._tasks)

    async def _ask(self, number):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        body = json.dumps({"user_id": f"user-{1 + number}", "k": 5, "exclude": [f"x{number}"]})
        head = "POST /v1/recommend HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        while not self.ended.is_set():
            writer.write(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
            answer = await reader.readuntil(b"\r\n\r\n")
            length = int(answer.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            reply = json.loads(await reader.readexactly(length))
            self.statuses[int(answer.split()[1])] += 1
            self.bundles[reply.get("served_by", {}).get("bundle")] += 1
            if b"connection: close" in answer.lower():
                writer.close()
                reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        writer.close()
