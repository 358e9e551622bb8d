"""The front's end of its processes: the zygote, and the loader and workers of each bundle."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from logging import ERROR
from pathlib import Path
from typing import Any

from serving.bundle.published import Identity
from serving.log import log
from serving.server.dispatch import Dispatcher, WorkerLink
from serving.server.zygote import receive_message, send_message

FAULTS = (signal.SIGBUS, signal.SIGSEGV, signal.SIGILL)
"""A worker that ends so may have lost a file under its memory: its bundle is verified again."""
MIN_LIFE_SECONDS = 1.0
"""Workers that live shorter are replaced after this pause."""
FORK_SECONDS = 30.0
"""A loader that takes longer to fork a worker is killed."""
RETIRE_SECONDS = 60.0
"""Time that workers of a replaced bundle may finish what they have in hand."""


class Process:
    """A child process controlled over a socket."""

    def __init__(self) -> None:
        self._ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self.pid = 0
        """0 until the process is known to run."""
        self.gone = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(self._ours.fileno(), self._read)

    def send(self, message: dict[str, Any], descriptor: int | None = None) -> None:
        """Send a message; one to a process that has ended is lost, as ``gone`` says."""
        if not self.gone.done():
            with suppress(ConnectionError):
                send_message(self._ours, message, descriptor)

    def close(self) -> None:
        """End the process."""
        self.theirs.close()
        if not self.gone.done():
            asyncio.get_running_loop().remove_reader(self._ours.fileno())
            self._ours.close()
            self.gone.set_result(None)

    def kill(self) -> None:
        """End a process that may hang."""
        if self.pid and not self.gone.done():
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self.close()

    def _read(self) -> None:
        try:
            received = receive_message(self._ours)
        except BlockingIOError:
            return
        except OSError:
            received = None
        if received is None:
            self.close()
            return
        self.on_message(received[0])

    def on_message(self, message: dict[str, Any]) -> None:
        raise NotImplementedError


class Zygote(Process):
    """Imports everything once; forks loaders."""

    def __init__(self) -> None:
        super().__init__()
        self.imported = asyncio.get_running_loop().create_future()
        one_thread = dict.fromkeys(
            ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"
        )
        path = os.pathsep.join(filter(None, sys.path))
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "serving.server.zygote", str(self.theirs.fileno())],
                pass_fds=[self.theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **one_thread, "PYTHONPATH": path},
            )
        except OSError:
            self.close()
            raise
        self.theirs.close()
        self.pid = self.process.pid

    def on_message(self, message: dict[str, Any]) -> None:
        if not self.imported.done():
            self.imported.set_result(None)


class WorkerGeneration(Process):
    """The loader of one bundle, and its workers."""

    def __init__(
        self,
        target: Path,
        identity: Identity,
        changed: Callable[[], None],
        ended: Callable[[str], None],
    ) -> None:
        """Start no process yet.

        Args:
            changed: Called when a worker or the loader is lost.
            ended: Called with the reason if a worker ends that should have served on.
        """
        super().__init__()
        self.target, self.identity = target, identity
        self._changed, self._ended = changed, ended
        self.parent: WorkerGeneration | None = None
        """Whose loader was forked for it; None if it was the zygote."""
        self.loaded: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._links: set[WorkerLink] = set()
        self.stuck: set[int] = set()
        """Workers that were killed because they hung."""
        self.fork_at = 0.0
        """When the next worker may be forked."""
        self._faulty = self._retired = False
        self._forked: asyncio.Queue[int] = asyncio.Queue()

    @property
    def links(self) -> set[WorkerLink]:
        """Workers that have not ended."""
        return {link for link in self._links if not link.lost.done()}

    @property
    def broken(self) -> bool:
        """True if the loader or its memory is lost, so that it can fork no more workers."""
        return self._faulty or self.gone.done()

    def on_message(self, message: dict[str, Any]) -> None:
        if "pid" in message:
            self.pid = message["pid"]
        elif "worker" in message:
            self._forked.put_nowait(message["worker"])
        elif "ended" in message:
            self._note_end(message["ended"], message["status"])
        elif not self.loaded.done():
            if "loaded" in message:
                self.loaded.set_result(message["loaded"])
            else:
                # It ends by itself.
                self.pid = 0
                self.loaded.set_exception(ValueError(message["refused"]))

    def close(self) -> None:
        super().close()
        if not self.loaded.done():
            self.loaded.set_exception(ChildProcessError("the process that loaded it ended"))
            # Whether or not a caller still waits for it.
            self.loaded.exception()
        self._forked.put_nowait(0)
        self._changed()

    async def add_worker(self, dispatcher: Dispatcher) -> WorkerLink:
        """Fork a worker.

        Raises:
            OSError: There is no memory or descriptor for it, or the loader has ended or hangs.
        """
        ours, theirs = socket.socketpair()
        began = time.monotonic()
        try:
            with theirs:
                self.send({"fork": True}, theirs.fileno())
            async with asyncio.timeout(FORK_SECONDS):
                pid = 0 if self.gone.done() else await self._forked.get()
            if not pid:
                raise ChildProcessError("the process that loaded the bundle ended")
            link = WorkerLink(dispatcher, pid)
            await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=ours)
        except TimeoutError:
            ours.close()
            self.kill()
            raise TimeoutError(f"no worker was forked within {FORK_SECONDS:g} s") from None
        except BaseException:
            ours.close()
            raise
        self._links.add(link)
        link.lost.add_done_callback(lambda _: self._lost(link, began))
        return link

    def _lost(self, link: WorkerLink, began: float) -> None:
        self._links.discard(link)
        now = time.monotonic()
        if now - began < MIN_LIFE_SECONDS:
            self.fork_at = now + MIN_LIFE_SECONDS
        self._changed()

    def shares_release(self, target: Path) -> bool:
        """True if a bundle is this one, or a delta of it."""
        return target.parent == self.target.parent and (
            target.name.partition("+")[0] == self.target.name
        )

    async def retire(self, *, keep_loader: bool = False) -> None:
        """Wait for workers, then end all processes, or all but the loader."""
        self._retired = True
        links = self.links
        for link in links:
            link.retire()
        if waiting := [link.lost for link in links]:
            await asyncio.wait(waiting, timeout=RETIRE_SECONDS)
        for link in links:
            link.kill()
        if not keep_loader:
            self.close()

    def _note_end(self, pid: int, status: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        if code == 0:
            return
        reason = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        log("worker_ended", {"pid": pid, "reason": reason, "bundle": self.target.name}, level=ERROR)
        if -code in FAULTS:
            self._faulty = True
            self._changed()
        if not self._retired:
            self._ended("stuck" if pid in self.stuck else "killed" if code < 0 else "exited")
