"""The queue: who gets a job, who waits, and who is refused; with workers that do nothing."""

import asyncio

import pytest

from serving.server.dispatch import MAX_BATCHES, PAUSE_SECONDS, OverloadedError, WorkerDiedError
from tests.serving.server.bench import Bench, run


def test_idle_workers_come_first_and_each_holds_one_more_while_others_wait():
    async def test():
        bench = Bench(workers=2)
        jobs = [bench.submit() for _ in range(6)]
        assert [len(one) for one in bench.held()] == [2, 2]
        assert len(bench.dispatcher.queue) == 2
        bench.reply(0)
        assert len(bench.dispatcher.queue) == 1
        assert sum(job.reply.done() for job in jobs) == 1

    run(test)


def test_a_full_queue_takes_no_more_however_fast_workers_are():
    async def test():
        bench = Bench(max_queue=3)
        for _ in range(2 + 3):
            bench.submit()
        with pytest.raises(OverloadedError):
            bench.submit()
        bench.reply(0)
        bench.submit()
        assert len(bench.dispatcher.queue) == 3

    run(test)


def test_dead_workers_jobs_go_to_another_and_one_that_kills_twice_is_given_up():
    async def test():
        bench = Bench(workers=3)
        job = bench.submit()
        for death in (1, 2):
            (place,) = [n for n, pipe in enumerate(bench.pipes) if pipe.frames]
            bench.pipes[place].frames.clear()
            bench.links[place].connection_lost(None)
            await asyncio.sleep(2 * PAUSE_SECONDS)
            assert len(bench.dispatcher.workers) == 3 - death
        # The last worker is spared.
        assert bench.held() == [[], [], []]
        assert job.reply.done()
        with pytest.raises(WorkerDiedError):
            await job.reply

    run(test)


def test_jobs_wait_for_a_worker_to_come_back():
    async def test():
        bench = Bench(workers=1, queue_seconds=0.02)
        bench.links[0].connection_lost(None)
        job = bench.submit()
        await asyncio.sleep(0.1)
        assert not job.reply.done()
        bench.links.append(bench.link())
        bench.dispatcher.workers.add(bench.links[-1])
        bench.dispatcher.fill()
        bench.reply(1)
        assert (await job.reply).body == b"done"

    run(test)


def test_each_worker_has_one_batch_and_lists_pass_it():
    async def test():
        bench = Bench(workers=1)
        batch = bench.submit("batch")
        for _ in range(MAX_BATCHES):
            bench.submit("batch")
        with pytest.raises(OverloadedError):
            bench.submit("batch")
        bench.submit()
        assert bench.held() == [["batch", "recommend"]]
        bench.dispatcher.abandon(batch)
        assert bench.pipes[0].frames[2].head == {"cancel": True}

    run(test)


def test_replaced_workers_finish_what_they_have():
    async def test():
        bench = Bench(workers=1)
        job = bench.submit()
        bench.links.append(bench.link())
        bench.dispatcher.use({bench.links[1]})
        assert not bench.pipes[0].closed
        bench.reply(0)
        assert job.reply.done()
        assert bench.pipes[0].closed
        bench.submit()
        assert bench.held() == [[], ["recommend"]]

    run(test)
