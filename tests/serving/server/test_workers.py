"""Processes: lists as in one process, and nothing lost whichever of them is killed."""

import asyncio
import json
import signal
import subprocess
import sys

import pytest

from serving.recommend import Recommender
from serving.schemas import Request
from tests.serving.server.running import SERVE, Load, RunningServer, post, running, wait_for


def test_lists_are_those_of_one_process(shared, released):
    recommender = Recommender.load(released / "current")
    asked = [{"user_id": f"user-{n}", "k": n} for n in range(1, 12)]
    asked += [{"session": ["item-3", "item-4"], "explain": True}, {"k": 3}]
    status, batch = shared.get("/v1/recommend:batch", {"requests": asked})
    assert status == 200
    for request, in_batch in zip(asked, batch["replies"], strict=True):
        wanted = recommender.answer(Request.model_validate(request))
        for reply in (in_batch, shared.get("/v1/recommend", request)[1]):
            assert [(one["item_id"], one["score"]) for one in reply["items"]] == [
                (one.item_id, one.score) for one in wanted.items
            ]


def test_other_routes_and_errors_are_the_applications(shared):
    assert shared.get("/v1/items?id=item-1")[1]["items"][0]["item_id"] == "item-1"
    assert shared.get("/v1/similar/item-1?k=2")[0] == 200
    assert shared.get("/v1/similar/nothing")[1]["error"]["code"] == "unknown_item"
    assert shared.get("/nowhere")[0] == 404
    assert shared.get("/v1/recommend", {"k": 0})[0] == 422
    assert shared.get("/v1/recommend:batch", {"requests": []})[0] == 422


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


def test_all_processes_killed_at_once_come_back_and_requests_wait_for_them(own):
    async def kill_everything():
        async with Load(own, connections=2) as load:
            await asyncio.sleep(0.3)
            for process in [one for some in own.processes() for one in some]:
                process.send_signal(signal.SIGKILL)
            await asyncio.sleep(1.0)
        return load.statuses

    # Those that wait longer than a server may need to come back are refused, none is lost.
    assert set(asyncio.run(kill_everything())) <= {200, 503}
    wait_for(lambda: own.ready() == 200)
    assert own.get("/v1/recommend", {"k": 1})[0] == 200
    assert own.events("bundle_reloaded")


def test_killed_worker_is_back_within_a_second(own):
    own.processes()[2][0].send_signal(signal.SIGKILL)
    wait_for(lambda: (state := own.state())["num_restarts"] == 1 and state["workers"] == 2, 2.0)


def test_a_loader_that_hangs_is_killed_and_replaced(bundles_dir, tmp_path):
    program = f"import serving.server.processes as one; one.FORK_SECONDS = 1.0; {SERVE}"
    with running(bundles_dir, tmp_path / "log", program=program) as server:
        workers = server.processes()[2]
        loader = workers[0].parent()
        loader.suspend()
        workers[0].kill()
        wait_for(lambda: not loader.is_running())
        wait_for(lambda: server.events("bundle_reloaded"))
        wait_for(lambda: server.state()["workers"] == 2)
        assert server.get("/v1/recommend", {"k": 1})[0] == 200


def test_all_processes_end_with_the_front(released, tmp_path):
    server = RunningServer(released, tmp_path / "log").until_ready()
    everyone = [one for some in server.processes() for one in some]
    everyone += wait_for(server.request_logs)
    server.process.kill()
    server.process.wait()
    wait_for(lambda: not any(one.is_running() for one in everyone))


def test_sigterm_flips_readiness_then_answers_what_is_accepted(released, tmp_path):
    server = RunningServer(released, tmp_path / "log", drain_notice_seconds=1).until_ready()

    async def end_under_load():
        async with Load(server) as load:
            await asyncio.sleep(0.3)
            server.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.3)
            status, _, _ = await asyncio.to_thread(lambda: (*server.get("/readyz"), None))
            assert status == 503
            # Requests are taken until the notice is over, and connections close after a reply.
            assert (await post(server.port, {"k": 1}))[0] == 200
            load.ended.set()
        return load.statuses

    assert set(asyncio.run(end_under_load())) == {200}
    assert server.process.wait(timeout=30) == 0
    assert "Traceback" not in server.log.read_text()


def test_equal_requests_at_one_time_are_computed_once_and_have_ids_of_their_own(shared):
    before = shared.state()["num_deduplicated"]

    def shares():
        return shared.state()["num_deduplicated"] - before

    async def ask():
        document = {"user_id": "user-3", "k": 7}
        return await asyncio.gather(*(post(shared.port, document) for _ in range(500)))

    async def ask_at_one_time():
        workers = shared.processes()[2]
        for worker in workers:
            worker.suspend()
        try:
            asking = asyncio.create_task(ask())
            await asyncio.to_thread(wait_for, lambda: shares() == 499)
        finally:
            for worker in workers:
                worker.resume()
        return await asking

    replies = asyncio.run(ask_at_one_time())
    assert {status for status, _, _ in replies} == {200}
    documents = [json.loads(body) for _, _, body in replies]
    assert len({one["request_id"] for one in documents}) == 500
    assert len({tuple(item["item_id"] for item in one["items"]) for one in documents}) == 1
    assert shares() == 499


def test_port_that_is_taken_is_said_before_a_bundle_is_loaded(shared, released, tmp_path):
    second = RunningServer(released, tmp_path / "log", port=shared.port)
    assert second.process.wait(timeout=60) == 1
    assert f"cannot listen on 127.0.0.1:{shared.port}" in second.log.read_text()


def test_the_front_imports_no_torch():
    program = "import sys; import serving.server.serve; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
