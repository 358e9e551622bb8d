"""The front's view of its processes: which workers serve which bundle, and what comes next.

A generation is the loader and the workers of one bundle. When ``current`` moves, the next one is
made beside the one that serves; it takes over once its workers are there, or is refused.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from logging import ERROR, WARNING
from pathlib import Path
from typing import Any

from serving.bundle.published import Identity, check_published, identity_of
from serving.log import log
from serving.metrics import ServerMetrics
from serving.online.opening import NO_STORE
from serving.server.dispatch import Dispatcher, WorkerLink
from serving.server.request_log import RequestLog
from serving.server.zygote import receive_message, send_message
from serving.settings import Settings

FAULTS = (signal.SIGBUS, signal.SIGSEGV, signal.SIGILL)
"""A worker that ends so may have lost a file under its memory: its bundle is verified again."""
MIN_LIFE_SECONDS = 1.0
"""Workers that live shorter are replaced after this pause."""
MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.2, 10.0
"""Between attempts to load any bundle that has served before."""
START_SECONDS = 120.0
RETIRE_SECONDS = 60.0
"""How long workers of a replaced bundle may finish what they have in hand."""
STUCK_SECONDS = 60.0
"""A worker that works on one list for longer is killed."""


class Process:
    """A process that is ordered about over a socket."""

    def __init__(self) -> None:
        self._ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self.gone = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(self._ours.fileno(), self._read)

    def started(self) -> None:
        """Note that the process has its end of the socket."""
        self.theirs.close()

    def send(self, message: dict[str, Any], descriptor: int | None = None) -> None:
        """Send a message; one to a process that is gone is lost, as ``gone`` says."""
        with suppress(OSError):
            send_message(self._ours, message, descriptor)

    def close(self) -> None:
        """Let the process end."""
        if not self.gone.done():
            asyncio.get_running_loop().remove_reader(self._ours.fileno())
            self._ours.close()
            self.gone.set_result(None)

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
        self.process = subprocess.Popen(
            [sys.executable, "-m", "serving.server.zygote", str(self.theirs.fileno())],
            pass_fds=[self.theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **one_thread, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self.started()

    def on_message(self, message: dict[str, Any]) -> None:
        if not self.imported.done():
            self.imported.set_result(None)


class Generation(Process):
    """The loader of one bundle, and its workers."""

    def __init__(self, target: Path, identity: Identity) -> None:
        super().__init__()
        self.target, self.identity = target, identity
        self.parent: Generation | None = None
        """Whose loader was forked for it; None where it was the zygote."""
        self.loaded: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.links: set[WorkerLink] = set()
        self.started_at = time.monotonic()
        self.faulty = asyncio.Event()
        self._forked: asyncio.Queue[int] = asyncio.Queue()

    def on_message(self, message: dict[str, Any]) -> None:
        if "worker" in message:
            self._forked.put_nowait(message["worker"])
        elif "ended" in message:
            self._note_end(message["ended"], message["status"])
        elif not self.loaded.done():
            if "loaded" in message:
                self.loaded.set_result(message["loaded"])
            else:
                self.loaded.set_exception(ValueError(message["refused"]))

    def close(self) -> None:
        super().close()
        if not self.loaded.done():
            self.loaded.set_exception(ValueError("the process that loaded it ended"))
        self._forked.put_nowait(0)

    async def add_worker(self, dispatcher: Dispatcher) -> WorkerLink | None:
        """Fork a worker; None where the loader is gone."""
        ours, theirs = socket.socketpair()
        self.send({"fork": True}, theirs.fileno())
        theirs.close()
        if self.gone.done() or not (pid := await self._forked.get()):
            ours.close()
            return None
        link = WorkerLink(dispatcher, pid)
        await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=ours)
        self.links.add(link)
        return link

    def is_release_of(self, target: Path) -> bool:
        """Whether a bundle is this one, or a delta of it."""
        return target.parent == self.target.parent and (
            target.name.partition("+")[0] == self.target.name
        )

    async def retire(self, *, keep_loader: bool = False) -> None:
        """Let workers finish, then end all processes, or all but the loader."""
        for link in self.links:
            link.retire()
        if waiting := [link.lost for link in self.links]:
            await asyncio.wait(waiting, timeout=RETIRE_SECONDS)
        if not keep_loader:
            self.close()

    def _note_end(self, pid: int, status: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        if code == 0:
            return
        reason = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        log("worker_ended", {"pid": pid, "reason": reason, "bundle": self.target.name}, level=ERROR)
        if -code in FAULTS:
            self.faulty.set()


@dataclass(kw_only=True)
class SwapState:
    """Swaps so far."""

    loaded_at: datetime
    num_swaps: int = 0
    num_refused: int = 0
    num_restarts: int = 0
    refused: str | None = None
    """Why what is published is not served; None where it is."""


@dataclass(kw_only=True)
class Fleet:
    """Keeps workers alive and on the published bundle."""

    settings: Settings
    dispatcher: Dispatcher
    metrics: ServerMetrics
    state: SwapState = field(default_factory=lambda: SwapState(loaded_at=datetime.now(UTC)))
    info: Mapping[str, Any] = field(default_factory=dict)
    """What is served, as a loader describes it."""
    request_log: RequestLog | None = None
    """None where lists are not kept."""
    last_poll: float = 0.0
    _zygote: Zygote | None = None
    _serving: Generation | None = None
    _released: Generation | None = None
    """The newest that was loaded whole; deltas and adapters are loaded by forks of its loader."""
    _good: list[Path] = field(default_factory=list)
    """Bundles that were served, the newest last."""
    _tried: Identity | None = None
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def watching(self) -> bool:
        """Whether a newly published bundle would be noticed."""
        late = time.monotonic() - self.last_poll
        return late < 10 * self.settings.poll_seconds + START_SECONDS

    async def start(self) -> None:
        """Load what is published and start its workers.

        Raises:
            ValueError: If there is none, or it is refused; says what to do.
        """
        check_published(self.settings.followed)
        self._tried = identity_of(self.settings.followed, self.settings.config)
        generation = await self._loaded(Path(self._tried[0][0]), self._tried)
        await self._take_over(generation)
        log("bundle_loaded", {"bundle": self.info["bundle"]})
        if self.settings.log_lists and self.settings.store_url != NO_STORE:
            self.request_log = RequestLog(self._fork_request_log, self.metrics.lists_kept)
            self._spawn(self.request_log.run())
        self._spawn(self._follow())

    async def stop(self) -> None:
        """End all processes."""
        for task in self._tasks:
            task.cancel()
        self.dispatcher.use(set())
        for generation in {self._serving, self._released}:
            if generation is not None:
                await generation.retire()
        if self.request_log is not None:
            await self.request_log.close()
        if self._zygote is not None:
            self._zygote.close()
            self._zygote.process.wait()

    def wake(self) -> None:
        """Poll soon, and try a refused bundle again."""
        self._tried = None
        self._wake.set()

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _fork_request_log(self, descriptor: int) -> None:
        zygote = await self._ready_zygote()
        zygote.send({"settings": self.settings.to_json()}, descriptor)

    async def _ready_zygote(self) -> Zygote:
        """Give the zygote, another one where it has ended.

        Raises:
            ValueError: It ends before it can fork.
        """
        zygote = self._zygote
        if zygote is None or zygote.gone.done():
            if zygote is not None:
                zygote.process.wait()
                log("zygote_restarted", {}, level=WARNING)
            self._zygote = zygote = Zygote()
        await asyncio.wait([zygote.imported, zygote.gone], return_when="FIRST_COMPLETED")
        if not zygote.imported.done():
            raise ValueError("the process that imports the models ended; see the log above")
        return zygote

    async def _loaded(self, target: Path, identity: Identity, *, whole: bool = False) -> Generation:
        """Make a generation; its loader has loaded the bundle.

        Args:
            whole: Share nothing with what is in memory.

        Raises:
            ValueError: The bundle is refused.
        """
        zygote = await self._ready_zygote()
        generation = Generation(target, identity)
        message = {"settings": self.settings.to_json(), "target": str(target)}
        released = self._released
        if whole or released is None or released.gone.done() or not released.is_release_of(target):
            zygote.send(message, generation.theirs.fileno())
        else:
            released.send(message, generation.theirs.fileno())
            generation.parent = released
        generation.started()
        try:
            await generation.loaded
        except BaseException:
            generation.close()
            raise
        return generation

    async def _take_over(self, generation: Generation) -> None:
        """Let a generation serve, and the one before finish."""
        links = [
            await generation.add_worker(self.dispatcher) for _ in range(self.settings.num_workers)
        ]
        if None in links:
            await generation.retire()
            raise ValueError("the process that loaded the bundle ended")
        before, self._serving = self._serving, generation
        self.info = generation.loaded.result()
        self.state.loaded_at, self.state.refused = datetime.now(UTC), None
        if generation.target in self._good:
            self._good.remove(generation.target)
        self._good.append(generation.target)
        self.dispatcher.use({link for link in links if link is not None})
        made = generation.identity[0][3] / 1e9 if generation.identity else time.time()
        age = max(0.0, time.time() - made)
        self.metrics.bundle(self.info["bundle"], self.info["digest"], age)
        for link in generation.links:
            self._spawn(self._keep_alive(generation, link))
        self._spawn(self._mend(generation))
        released, self._released = self._released, generation.parent or generation
        for replaced in {before, released} - {generation}:
            if replaced is not None:
                self._spawn(replaced.retire(keep_loader=replaced is self._released))

    async def _keep_alive(self, generation: Generation, link: WorkerLink | None) -> None:
        """Replace a worker whenever it ends, for as long as its generation serves."""
        while link is not None:
            begin = time.monotonic()
            await link.lost
            generation.links.discard(link)
            if generation is not self._serving:
                return
            if time.monotonic() - begin < MIN_LIFE_SECONDS:
                await asyncio.sleep(MIN_LIFE_SECONDS)
            link = await generation.add_worker(self.dispatcher)
            if link is not None and generation is self._serving:
                self.state.num_restarts += 1
                self.metrics.worker_restarted("killed")
                self.dispatcher.workers.add(link)
                self.dispatcher.fill()

    async def _mend(self, generation: Generation) -> None:
        """Load the bundle again, or the last good one, where the loader or its memory is lost."""
        faulty = asyncio.get_running_loop().create_task(generation.faulty.wait())
        await asyncio.wait([generation.gone, faulty], return_when="FIRST_COMPLETED")
        faulty.cancel()
        if generation is not self._serving:
            return
        pause = MIN_PAUSE_SECONDS
        while generation is self._serving:
            for target in reversed(self._good):
                if await self._reloaded(target):
                    return
            log("no_good_bundle", {"tried": [path.name for path in self._good]}, level=ERROR)
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE_SECONDS)

    async def _reloaded(self, target: Path) -> bool:
        """Load a bundle that has served before, and serve it; False where it is refused."""
        published = identity_of(self.settings.followed, self.settings.config)
        # Another bundle than the published one has no identity that a poll would find.
        identity = published if published[0][0] == str(target) else ()
        try:
            await self._take_over(await self._loaded(target, identity, whole=True))
        except ValueError as error:
            self._refuse(str(error))
            return False
        log("bundle_reloaded", {"bundle": self.info["bundle"]}, level=WARNING)
        return True

    async def _follow(self) -> None:
        """Poll for a newly published bundle until the server ends, whatever happens."""
        failure = ""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.settings.poll_seconds):
                    await self._wake.wait()
            self._wake.clear()
            try:
                self.last_poll = time.monotonic()
                await self.poll()
                self._kill_stuck()
                failure = ""
            except Exception as error:
                if failure != repr(error):
                    log("poll_failed", {}, level=ERROR, failed=True)
                failure = repr(error)

    async def poll(self) -> bool:
        """Look once at what is published; return whether it was swapped."""
        identity = identity_of(self.settings.followed, self.settings.config)
        if identity == self._tried:
            return False
        self._tried = identity
        assert self._serving is not None
        if identity == self._serving.identity:
            self.state.refused = None
            return False
        begin, before = time.monotonic(), self.info["bundle"]
        try:
            generation = await self._loaded(Path(identity[0][0]), identity)
            await self._take_over(generation)
        except ValueError as error:
            self._refuse(str(error))
            return False
        self.state.num_swaps += 1
        seconds = time.monotonic() - begin
        self.metrics.swap(seconds)
        fields = {"before": before, "bundle": self.info["bundle"]}
        log("bundle_swapped", {**fields, "seconds": round(seconds, 3)})
        return True

    def _refuse(self, reason: str) -> None:
        self.state.num_refused += 1
        self.metrics.swap_refused()
        self.state.refused = reason
        serving = self.info.get("bundle")
        log("bundle_refused", {"serving": serving, "reason": reason}, level=ERROR)

    def _kill_stuck(self) -> None:
        """Kill a worker that does not come back from a list."""
        found = self.dispatcher.oldest_in_hand()
        if found is not None and time.monotonic() - found[1] > STUCK_SECONDS:
            log("worker_stuck", {"seconds": STUCK_SECONDS}, level=ERROR)
            found[0].kill()
