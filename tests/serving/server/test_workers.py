"""Processes: lists as in one process, and nothing lost whichever of them is killed."""

import asyncio
import signal
import subprocess
import sys

import pytest

from serving.recommend import Recommender
from serving.schemas import Request
from tests.serving.server.running import Load, wait_for


def test_lists_are_those_of_one_process(shared, released):
    recommender = Recommender.load(released / "current")
    asked = [{"user_id": f"user-{n}", "k": n} for n in (1, 4, 5, 6, 7, 8, 9)]
    asked += [{"session": ["item-3", "item-4"], "explain": True}, {"k": 3}]
    status, batch = shared.get("/v1/recommend:batch", {"requests": asked})
    assert status == 200
    for request, in_batch in zip(asked, batch["replies"], strict=True):
        wanted = recommender.answer(Request.model_validate(request))
        for reply in (in_batch, shared.get("/v1/recommend", request)[1]):
            assert [(one["item_id"], one["score"]) for one in reply["items"]] == [
                (one.item_id, one.score) for one in wanted.items
            ]


def test_killed_worker_is_back_within_a_second(own):
    own.processes()[2][0].send_signal(signal.SIGKILL)
    wait_for(lambda: own.count("num_restarts") == 1 and own.state()["workers"] == 2, 2.0)


@pytest.mark.parametrize("which", ["worker", "loader", "zygote"])
def test_killed_process_loses_no_request_and_is_replaced(own, which):
    async def kill_under_load():
        async with Load(own) as load:
            await asyncio.sleep(0.3)
            zygotes, loaders, workers = own.processes()
            for process in {"worker": workers, "loader": loaders, "zygote": zygotes}[which]:
                process.send_signal(signal.SIGKILL)
                await asyncio.sleep(0.4)
        return load.statuses

    statuses = asyncio.run(kill_under_load())
    assert set(statuses) == {200}
    assert sum(statuses.values()) > 20

    def whole():
        zygotes, loaders, workers = own.processes()
        return which == "zygote" or (len(zygotes), len(loaders), len(workers)) == (1, 1, 2)

    wait_for(whole)
    wait_for(lambda: own.state()["workers"] == 2)
    if which == "worker":
        assert [line["reason"] for line in own.events("worker_ended")] == ["SIGKILL", "SIGKILL"]


def test_the_front_imports_no_torch():
    program = "import sys; import serving.server.serve; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
