"""The front's view of its processes: which workers serve which bundle, and what comes next.

A generation is the loader and the workers of one bundle. Two loops supervise, and no failure ends
either. One alone decides which generation serves: when ``current`` moves it loads the next one
while the served one continues; when a loader or its memory is lost it loads that one again. The
other replaces workers that end, and kills those that hang, independent of the first.

A ``ValueError`` is the bundle's fault: it is refused until something else is published. An
``OSError`` (no descriptors, a process that ended or hangs) is the machine's: it is tried again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from logging import ERROR, WARNING
from pathlib import Path
from typing import Any

from serving.bundle.published import Identity, check_published, identify
from serving.log import log
from serving.metrics import ServerMetrics
from serving.online.opening import NO_STORE
from serving.server.dispatch import Dispatcher
from serving.server.processes import WorkerGeneration, Zygote
from serving.server.request_log import RequestLog
from serving.settings import Settings

MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.2, 60.0
"""Between attempts that fail for another reason than the bundle; doubled after each."""
LOAD_SECONDS = 600.0
"""A loader that takes longer to load a bundle is killed."""
TEND_SECONDS = 0.5
"""How often workers are looked after, unless one ends."""
STUCK_SECONDS = 60.0
"""A worker that works on one list for longer is killed."""


@dataclass(kw_only=True)
class SwapState:
    """Swaps so far."""

    loaded_at: datetime
    num_swaps: int = 0
    num_refused: int = 0
    num_restarts: int = 0
    refused: str | None = None
    """Reason that the published bundle is not served; None if it is."""


@dataclass(kw_only=True)
class Fleet:
    """Keeps workers alive and on the published bundle."""

    settings: Settings
    dispatcher: Dispatcher
    metrics: ServerMetrics
    state: SwapState = field(default_factory=lambda: SwapState(loaded_at=datetime.now(UTC)))
    info: Mapping[str, Any] = field(default_factory=dict)
    """The served bundle, as a loader describes it."""
    request_log: RequestLog | None = None
    """None where lists are not kept."""
    last_poll: float = 0.0
    _zygote: Zygote | None = None
    _serving: WorkerGeneration | None = None
    _released: WorkerGeneration | None = None
    """The newest that was loaded whole; deltas and adapters are loaded by forks of its loader."""
    _good: list[Path] = field(default_factory=list)
    """Bundles that were served, the newest last."""
    _tried: Identity | None = None
    """The bundle that was served or refused, and is not tried again."""
    _failed: Identity | None = None
    """The bundle that is tried again at ``_retry_at``: it may not be at fault."""
    _retry_at: float = 0.0
    _pause: float = MIN_PAUSE_SECONDS
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _worker_lost: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def watching(self) -> bool:
        """True if a newly published bundle would be noticed."""
        late = time.monotonic() - self.last_poll
        return late < 10 * self.settings.poll_seconds + LOAD_SECONDS

    def readiness(self, *, draining: bool) -> dict[str, Any]:
        """Describe what is served, as ``/readyz`` does."""
        workers = len(self.dispatcher.workers)
        return {
            "status": "draining" if draining else "ready" if workers else "no_worker",
            **self.info,
            "workers": workers,
            "watching": self.watching,
            "loaded_at": self.state.loaded_at,
            "num_swaps": self.state.num_swaps,
            "num_refused": self.state.num_refused,
            "num_restarts": self.state.num_restarts,
            "num_deduplicated": self.dispatcher.num_deduplicated,
            "refused": self.state.refused,
        }

    async def start(self) -> None:
        """Load the published bundle and start its workers."""
        check_published(self.settings.followed)
        self._tried = identify(self.settings.followed, self.settings.config)
        try:
            await self._serve(Path(self._tried[0][0]), self._tried)
        except OSError as error:
            raise ValueError(f"the bundle cannot be served: {error}; see the log above") from error
        log("bundle_loaded", {"bundle": self.info["bundle"]})
        if self.settings.log_lists and self.settings.store_url != NO_STORE:
            self.request_log = RequestLog(self._fork_request_log, self.metrics.lists_kept)
            self._spawn(self.request_log.run())
        self._spawn(self._forever(self.poll, self._wake, self.settings.poll_seconds))
        self._spawn(self._forever(self.tend, self._worker_lost, TEND_SECONDS))

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
        self._tried, self._retry_at = None, 0.0
        self._wake.set()

    def _changed(self) -> None:
        self._wake.set()
        self._worker_lost.set()

    async def _forever(
        self, step: Callable[[], Awaitable[Any]], event: asyncio.Event, seconds: float
    ) -> None:
        """Take a step after each event and each interval, even after a failure."""
        failure = ""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await event.wait()
            event.clear()
            try:
                await step()
                failure = ""
            except Exception as error:
                if failure != repr(error):
                    log("supervision_failed", {"step": step.__name__}, level=ERROR, failed=True)
                failure = repr(error)

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _fork_request_log(self, descriptor: int) -> None:
        zygote = await self._ready_zygote()
        zygote.send({"settings": self.settings.to_json()}, descriptor)

    async def _ready_zygote(self) -> Zygote:
        """Return the zygote, or another one if it has ended."""
        zygote = self._zygote
        if zygote is None or zygote.gone.done():
            if zygote is not None:
                zygote.process.wait()
                log("zygote_restarted", {}, level=WARNING)
            self._zygote = zygote = Zygote()
        await asyncio.wait([zygote.imported, zygote.gone], return_when="FIRST_COMPLETED")
        if not zygote.imported.done():
            raise ChildProcessError("the process that imports the models ended; see the log above")
        return zygote

    async def _loaded(
        self, target: Path, identity: Identity, *, whole: bool = False
    ) -> WorkerGeneration:
        """Make a generation; its loader has loaded the bundle.

        Args:
            whole: Share no memory with loaded bundles.
        """
        generation = WorkerGeneration(target, identity, self._changed, self._worker_ended)
        message = {"settings": self.settings.to_json(), "target": str(target)}
        shared = None if whole else self._released
        if shared is not None and not shared.broken and shared.shares_release(target):
            generation.parent = shared
        try:
            async with asyncio.timeout(LOAD_SECONDS):
                source = generation.parent or await self._ready_zygote()
                source.send(message, generation.theirs.fileno())
                generation.theirs.close()
                await generation.loaded
        except TimeoutError:
            hangs = generation if generation.pid else generation.parent or self._zygote
            if hangs is not None:
                hangs.kill()
            generation.close()
            raise TimeoutError(f"it did not load within {LOAD_SECONDS:g} s") from None
        except BaseException:
            generation.kill()
            raise
        return generation

    async def _serve(self, target: Path, identity: Identity, *, whole: bool = False) -> None:
        """Load a bundle and let it serve, and the generation before finish."""
        generation = await self._loaded(target, identity, whole=whole)
        try:
            # One that ends meanwhile is replaced before it counts; a bundle whose workers all end
            # does not replace one that serves.
            for _ in range(2 * self.settings.num_workers):
                if len(generation.links) < self.settings.num_workers:
                    await generation.add_worker(self.dispatcher)
            if len(generation.links) < self.settings.num_workers:
                raise ChildProcessError("its workers ended as soon as they began")
        except BaseException:
            self._spawn(generation.retire())
            raise
        self._take_over(generation)

    def _take_over(self, generation: WorkerGeneration) -> None:
        before, self._serving = self._serving, generation
        self.info = generation.loaded.result()
        self.state.loaded_at = datetime.now(UTC)
        if generation.target in self._good:
            self._good.remove(generation.target)
        self._good.append(generation.target)
        self.dispatcher.use(generation.links)
        made = generation.identity[0][3] / 1e9 if generation.identity else time.time()
        age = max(0.0, time.time() - made)
        self.metrics.bundle(self.info["bundle"], self.info["digest"], age)
        if generation.identity:
            self._published_serves()
        released, self._released = self._released, generation.parent or generation
        for replaced in {before, released} - {generation}:
            if replaced is not None:
                self._spawn(replaced.retire(keep_loader=replaced is self._released))

    def _worker_ended(self, reason: str) -> None:
        self.state.num_restarts += 1
        self.metrics.worker_restarted(reason)

    async def tend(self) -> None:
        """Kill a worker that hangs, and replace those of the serving bundle that have ended.

        Raises:
            OSError: One cannot be replaced.
        """
        generation = self._serving
        assert generation is not None
        found = self.dispatcher.oldest_in_hand()
        if found is not None and time.monotonic() - found[1] > STUCK_SECONDS:
            log("worker_stuck", {"seconds": STUCK_SECONDS}, level=ERROR)
            generation.stuck.add(found[0].pid)
            found[0].kill()
        while (
            generation is self._serving
            and not generation.broken
            and len(generation.links) < self.settings.num_workers
            and time.monotonic() >= generation.fork_at
        ):
            link = await generation.add_worker(self.dispatcher)
            if generation is not self._serving:
                link.retire()
            elif not link.lost.done():
                self.dispatcher.workers.add(link)
                self.dispatcher.fill()

    async def poll(self) -> bool:
        """Compare the published bundle with the serving one; return whether it was swapped."""
        self.last_poll = now = time.monotonic()
        identity = identify(self.settings.followed, self.settings.config)
        serving, due = self._serving, now >= self._retry_at
        assert serving is not None
        if identity != self._tried and (due or identity != self._failed):
            self._tried = identity
            if identity == serving.identity:
                if not serving.broken:
                    self._published_serves()
            elif await self._swapped(identity):
                return True
        if serving.broken and due:
            await self._reload(identity)
        return False

    async def _swapped(self, identity: Identity) -> bool:
        """Serve the published bundle; False if it is refused, or to be tried again."""
        begin, before = time.monotonic(), self.info["bundle"]
        if not await self._attempt(Path(identity[0][0]), identity):
            return False
        self.state.num_swaps += 1
        seconds = time.monotonic() - begin
        self.metrics.swap(seconds)
        fields = {"before": before, "bundle": self.info["bundle"]}
        log("bundle_swapped", {**fields, "seconds": round(seconds, 3)})
        return True

    async def _reload(self, published: Identity) -> None:
        """Load the bundle again that served, or the last good one, since its memory is lost."""
        for target in reversed(self._good):
            # Another bundle than the published one has no identity that a poll would find.
            if await self._attempt(target, published if published[0][0] == str(target) else ()):
                log("bundle_reloaded", {"bundle": self.info["bundle"]}, level=WARNING)
                return
        log("no_good_bundle", {"tried": [path.name for path in self._good]}, level=ERROR)
        self._retry_later()

    async def _attempt(self, target: Path, identity: Identity) -> bool:
        """Serve a bundle; False if it is refused, or to be tried again."""
        assert self._serving is not None
        try:
            await self._serve(target, identity, whole=self._serving.broken)
        except (ValueError, OSError) as error:
            self.state.num_refused += 1
            self.metrics.swap_refused()
            self.state.refused = str(error)
            fields = {"serving": self.info["bundle"], "reason": str(error)}
            log("bundle_refused", fields, level=ERROR)
            if isinstance(error, OSError) and identity:
                self._tried, self._failed = None, identity
                self._retry_later()
            return False
        return True

    def _retry_later(self) -> None:
        self._retry_at = time.monotonic() + self._pause
        asyncio.get_running_loop().call_later(self._pause, self._wake.set)
        self._pause = min(2 * self._pause, MAX_PAUSE_SECONDS)

    def _published_serves(self) -> None:
        self.state.refused, self._pause = None, MIN_PAUSE_SECONDS
        self.metrics.note(bundle_refused=0)
