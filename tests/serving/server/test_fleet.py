"""The fleet with processes that the test plays: races, failures and hangs, without a model."""

import asyncio
import errno
import itertools
import os
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from recsys.data.durable import replace_link
from serving.metrics import ServerMetrics
from serving.online.opening import NO_STORE
from serving.server import fleet as fleet_module
from serving.server import processes
from serving.server.dispatch import Dispatcher, WorkerLink
from serving.server.fleet import Fleet
from serving.server.frames import FrameReader, packed
from serving.server.zygote import receive_message, send_message
from serving.settings import Settings

PIDS = itertools.count(1 << 30)
"""Above any that a system gives."""


class PlayedWorker:
    """Answers each job at once, unless it hangs."""

    def __init__(self, end):
        self.pid, self.hangs, self._end, self._reader = next(PIDS), False, end, FrameReader()
        end.setblocking(False)
        asyncio.get_running_loop().add_reader(end, self._read)

    def _read(self):
        if not (data := self._end.recv(1 << 16)):
            self.close()
            return
        for frame in self._reader.feed(data):
            if not self.hangs:
                self._end.sendall(packed(frame.job, {"status": 200, "fields": {}}))

    def close(self):
        asyncio.get_running_loop().remove_reader(self._end)
        self._end.close()


class PlayedLoader:
    """Loads when the test says so, and has workers for those that it is told to fork."""

    def __init__(self, descriptor, target, stillborn):
        self.pid, self.target, self.workers = next(PIDS), target, []
        self.stillborn, self.hangs = stillborn, False
        self._end = socket.socket(fileno=os.dup(descriptor))
        self._end.setblocking(False)
        asyncio.get_running_loop().add_reader(self._end, self._read)
        send_message(self._end, {"pid": self.pid})

    def load(self):
        send_message(self._end, {"loaded": {"bundle": self.target, "digest": "0"}})

    def refuse(self, reason):
        send_message(self._end, {"refused": reason})

    def _read(self):
        if (received := receive_message(self._end)) is None:
            self.end()
            return
        if self.hangs:
            os.close(received[1])
            return
        worker = PlayedWorker(socket.socket(fileno=received[1]))
        self.workers.append(worker)
        if self.stillborn:
            self.stillborn -= 1
            self.workers.remove(worker)
            worker.close()
        send_message(self._end, {"worker": worker.pid})

    def end_worker(self, worker, status):
        self.workers.remove(worker)
        worker.close()
        send_message(self._end, {"ended": worker.pid, "status": status})

    def end(self):
        asyncio.get_running_loop().remove_reader(self._end)
        self._end.close()


class Stage:
    """A fleet on a folder of bundles that are names; plays what a zygote starts."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.loaders, self.killed, self.num_failures = folder, [], [], 0
        self.loads_at_once, self.stillborn = False, {}
        monkeypatch.setattr(fleet_module, "Zygote", lambda: self)
        monkeypatch.setattr(fleet_module, "TEND_SECONDS", 0.01)
        monkeypatch.setattr(fleet_module, "MIN_PAUSE_SECONDS", 0.01)
        monkeypatch.setattr(processes, "MIN_LIFE_SECONDS", 0.01)
        monkeypatch.setattr(os, "kill", self._kill)
        monkeypatch.setattr(socket, "socketpair", self._socketpair)
        self.process = SimpleNamespace(wait=lambda: None)
        self.metrics = ServerMetrics()
        self.dispatcher = Dispatcher(queue_seconds=5.0, max_queue=100)

    async def __aenter__(self):
        loop = asyncio.get_running_loop()
        self.imported, self.gone = loop.create_future(), loop.create_future()
        self.imported.set_result(None)
        self.publish("a")
        settings = Settings(bundles=self.folder, workers=2, poll_seconds=0.01, store=NO_STORE)
        self.fleet = Fleet(settings=settings, dispatcher=self.dispatcher, metrics=self.metrics)
        starting = asyncio.create_task(self.fleet.start())
        (await self.loader(0)).load()
        await starting
        return self

    async def __aexit__(self, *_):
        for loader in self.loaders:
            for worker in loader.workers:
                worker.hangs = False
        await self.fleet.stop()

    def publish(self, name):
        directory = self.folder / f"bundle-{name}"
        directory.mkdir(exist_ok=True)
        (directory / "manifest.json").write_text(name)
        replace_link(self.folder / "current", directory.name)

    def send(self, message, descriptor):
        """Be the zygote."""
        name = Path(message["target"]).name.removeprefix("bundle-")
        self.loaders.append(PlayedLoader(descriptor, name, self.stillborn.get(name, 0)))
        if self.loads_at_once:
            self.loaders[-1].load()

    def close(self):
        pass

    async def loader(self, place):
        await self.until(lambda: len(self.loaders) > place)
        return self.loaders[place]

    async def serves(self, name):
        await self.until(lambda: self.fleet.info["bundle"] == name)
        await self.until(lambda: len(self.dispatcher.workers) == 2)
        jobs = [self.dispatcher.submit("recommend", b"{}", b"") for _ in range(4)]
        await asyncio.wait_for(asyncio.gather(*(job.reply for job in jobs)), 20)

    async def until(self, true):
        async with asyncio.timeout(20):
            while not true():
                await asyncio.sleep(0.002)

    def restarts(self, reason):
        line = f'recsys_worker_restarts_total{{reason="{reason}"}} '
        found = [one for one in self.metrics.render()[0].decode().splitlines() if line in one]
        return float(found[0].removeprefix(line))

    def _kill(self, pid, number):
        self.killed.append(pid)
        for loader in self.loaders:
            if loader.pid == pid:
                loader.end()
            for worker in [one for one in loader.workers if one.pid == pid]:
                loader.end_worker(worker, number)

    def _socketpair(self, *arguments, made=socket.socketpair):
        if self.num_failures:
            self.num_failures -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return made(*arguments)


@pytest.fixture
def stage(tmp_path, monkeypatch):
    return Stage(tmp_path, monkeypatch)


def played(test):
    def run(stage):
        async def inside():
            async with asyncio.timeout(60), stage:
                await test(stage)

        asyncio.run(inside())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@played
async def test_a_loader_that_dies_while_the_next_bundle_loads_does_not_bring_its_own_back(stage):
    first = stage.loaders[0]
    stage.publish("b")
    second = await stage.loader(1)
    first.end()
    await asyncio.sleep(0.05)
    stage.loads_at_once = True
    for loader in stage.loaders[1:]:
        loader.load()
    await stage.serves("b")
    await asyncio.sleep(0.05)
    assert stage.fleet.info["bundle"] == "b"
    assert [one.target for one in stage.loaders] == ["a", "b"]
    assert second.workers


@played
async def test_a_bundle_is_loaded_again_if_the_next_one_is_refused_and_its_loader_is_gone(stage):
    stage.publish("b")
    second = await stage.loader(1)
    stage.loaders[0].end()
    stage.loads_at_once = True
    second.refuse("b is damaged")
    await stage.until(lambda: len(stage.loaders) == 3)
    await stage.serves("a")
    own = stage.loaders[2].workers
    await stage.until(
        lambda: {link.pid for link in stage.dispatcher.workers} == {one.pid for one in own}
    )
    # What is published is still not what is served.
    assert stage.fleet.state.refused == "b is damaged"
    assert stage.loaders[2].target == "a"


@played
async def test_a_swap_without_a_descriptor_is_said_and_tried_again(stage):
    stage.loads_at_once, stage.num_failures = True, 3
    stage.publish("b")
    await stage.until(lambda: stage.fleet.state.refused)
    assert "Too many open files" in stage.fleet.state.refused
    await stage.serves("b")
    assert stage.fleet.state.refused is None
    assert stage.fleet.state.num_refused == 3


@played
async def test_a_lost_bundle_that_needs_another_attempt_is_reloaded_not_swapped(stage):
    stage.loads_at_once, stage.num_failures = True, 1
    stage.loaders[0].end()
    state = stage.fleet.state
    await stage.until(lambda: state.num_refused == 1 and state.refused is None)
    assert state.num_swaps == 0


@played
async def test_a_worker_that_ends_before_it_serves_gets_no_request(stage):
    stage.stillborn["b"] = 1
    stage.loads_at_once = True
    stage.publish("b")
    await stage.serves("b")
    assert stage.fleet.state.num_swaps == 1


@played
async def test_a_worker_is_replaced_after_a_failure_to_replace_it(stage):
    loader = stage.loaders[0]
    stage.num_failures = 3
    loader.end_worker(loader.workers[0], 9)
    await stage.until(lambda: stage.num_failures == 0)
    await stage.serves("a")
    assert len(loader.workers) == 2


@played
async def test_workers_that_end_are_counted_by_the_reason(stage):
    loader = stage.loaders[0]
    loader.end_worker(loader.workers[0], 9)
    await stage.until(lambda: len(loader.workers) == 2)
    loader.end_worker(loader.workers[0], 3 << 8)
    await stage.serves("a")
    await stage.until(lambda: stage.fleet.state.num_restarts == 2)
    assert [stage.restarts(one) for one in ("killed", "exited", "stuck")] == [1, 1, 0]


@played
async def test_a_bundle_that_hangs_is_given_up_and_a_stuck_worker_is_killed_meanwhile(stage):
    with pytest.MonkeyPatch().context() as patched:
        patched.setattr(fleet_module, "LOAD_SECONDS", 0.5)
        patched.setattr(fleet_module, "STUCK_SECONDS", 0.05)
        stage.publish("b")
        hung = await stage.loader(1)
        workers = list(stage.loaders[0].workers)
        for worker in workers:
            worker.hangs = True

        def kill_the_first(pid, number):
            """Later ones are not stuck, however slow the machine is."""
            patched.setattr(fleet_module, "STUCK_SECONDS", 30.0)
            for worker in workers:
                worker.hangs = False
            stage._kill(pid, number)

        patched.setattr(os, "kill", kill_the_first)
        job = stage.dispatcher.submit("recommend", b"{}", b"")
        await stage.until(lambda: stage.killed)
        # Before the loader was given up.
        assert stage.killed[0] in [worker.pid for worker in workers]
        assert await job.reply
        await stage.until(lambda: hung.pid in stage.killed)
        await stage.until(lambda: stage.fleet.state.refused)
        assert "did not load within 0.5 s" in stage.fleet.state.refused
        patched.setattr(fleet_module, "LOAD_SECONDS", 30.0)
        stage.loads_at_once = True
        await stage.serves("b")
    assert (stage.restarts("stuck"), stage.restarts("killed")) == (1, 0)


@played
async def test_a_loader_that_forks_no_worker_is_killed_and_its_bundle_loaded_again(stage):
    first = stage.loaders[0]
    with pytest.MonkeyPatch().context() as patched:
        patched.setattr(processes, "FORK_SECONDS", 0.05)
        stage.loads_at_once = first.hangs = True
        first.end_worker(first.workers[0], 9)
        await stage.until(lambda: first.pid in stage.killed)
        patched.setattr(processes, "FORK_SECONDS", 30.0)
        await stage.until(lambda: len(stage.loaders) == 2)
        await stage.serves("a")


def test_a_worker_that_has_ended_is_sent_no_signal(monkeypatch):
    killed = []
    monkeypatch.setattr(os, "kill", lambda *arguments: killed.append(arguments))

    async def end_and_kill():
        link = WorkerLink(Dispatcher(queue_seconds=1.0, max_queue=1), next(PIDS))
        link.kill()
        link.connection_lost(None)
        link.kill()

    asyncio.run(end_and_kill())
    assert len(killed) == 1


@played
async def test_a_loader_that_dies_of_the_next_bundle_is_tried_again(stage):
    stage.publish("b")
    (await stage.loader(1)).end()
    await stage.until(lambda: stage.fleet.state.refused)
    stage.loads_at_once = True
    await stage.serves("b")
