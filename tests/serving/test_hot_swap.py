import asyncio
import gc
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import aiohttp
import numpy as np
import psutil
import pytest

from serving.bundle.delta import NewItem, write_delta
from serving.bundle.manifest import publish
from serving.hot_swap import BundleWatcher
from serving.schemas import Request
from serving.settings import ServingOptions
from tests.serving.synthetic_bundle import SyntheticSize, write_synthetic_bundle

SERVE = """
from serving.web.app import serve
from serving.settings import Settings
serve(Settings.from_environment())
"""


@pytest.fixture
def watcher(bundles_dir):
    return BundleWatcher(bundles_dir, poll_seconds=60)


def version(watcher):
    return watcher.recommender.answer(Request(user_id="user-1", k=1)).served_by.bundle


def test_published_bundle_is_taken_and_an_unchanged_one_is_not(watcher, bundles_dir):
    assert not watcher.poll()
    write_synthetic_bundle(bundles_dir, "v2", SyntheticSize(num_items=60, seed=1))
    assert not watcher.poll()
    publish(bundles_dir, "v2")
    assert watcher.poll()
    assert version(watcher) == "v2"
    assert not watcher.poll()
    assert watcher.state.num_swaps == 1
    # Rolling back is the same move.
    publish(bundles_dir, "v1")
    assert watcher.poll()
    assert version(watcher) == "v1"


def test_bundle_that_was_replaced_lets_go_of_its_files(tmp_path):
    """At once, and not when the garbage collector next comes by."""
    for seed, name in enumerate(("v1", "v2")):
        write_synthetic_bundle(tmp_path, name, SyntheticSize(history_models=True, seed=seed))
    publish(tmp_path, "v1")
    watcher = BundleWatcher(tmp_path, ServingOptions(profile="full"), poll_seconds=60)
    watcher.recommender.answer(Request(user_id="user-1", k=1))
    gc.collect()
    gc.disable()
    try:
        publish(tmp_path, "v2")
        assert watcher.poll()
        inside = str(tmp_path)
        opened = [f.path for f in psutil.Process().open_files() if f.path.startswith(inside)]
        assert not [path for path in opened if "bundle-v1" in path]
        assert [path for path in opened if "bundle-v2" in path]
    finally:
        gc.enable()


def test_published_delta_is_taken(watcher, bundles_dir):
    item = NewItem(item_id="fresh", display_text="Fresh")
    write_delta(
        bundles_dir, "v1", [item], content=np.zeros((1, 4)), item_vectors=np.full((1, 8), 0.35)
    )
    publish(bundles_dir, "v1+1")
    assert watcher.poll()
    assert version(watcher) == "v1+1"
    reply = watcher.recommender.answer(Request(surface="similar", item_id="fresh", k=3))
    assert len(reply.items) == 3


def test_bundle_with_other_dimensions_is_refused_and_the_old_one_serves(
    watcher, bundles_dir, reseal
):
    write_synthetic_bundle(bundles_dir, "v2", SyntheticSize(seed=1))
    other = write_synthetic_bundle(bundles_dir, "v3", SyntheticSize(embedding_dim=16))
    for name in ("items.faiss", "items.faiss.json"):
        shutil.copyfile(other / "index" / name, bundles_dir / "bundle-v2" / "index" / name)
    reseal(bundles_dir / "bundle-v2")
    publish(bundles_dir, "v2")
    assert not watcher.poll()
    assert version(watcher) == "v1"
    assert watcher.state.num_refused == 1
    assert "items.faiss is 41 x 16, the rest of the bundle needs 41 x 8" in watcher.state.refused
    # It is not tried again and again, and the next good one ends the alarm.
    assert not watcher.poll()
    assert watcher.state.num_refused == 1
    publish(bundles_dir, "v3")
    assert watcher.poll()
    assert (watcher.state.refused, watcher.state.num_refused) == (None, 1)


def test_damage_after_publishing_is_refused_and_repaired_by_a_signal(watcher, bundles_dir):
    directory = write_synthetic_bundle(bundles_dir, "v2", SyntheticSize(seed=1))
    publish(bundles_dir, "v2")
    path = directory / "popularity" / "popularity.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    assert not watcher.poll()
    assert "popularity.safetensors has" in watcher.state.refused
    path.write_bytes(content)
    assert not watcher.poll()
    watcher.wake()
    assert watcher.poll()
    assert version(watcher) == "v2"


@pytest.mark.parametrize("damage", ["dangling", "gone", "file", "not a manifest"])
def test_whatever_current_becomes_the_old_one_serves(watcher, bundles_dir, damage):
    current = bundles_dir / "current"
    current.unlink()
    if damage == "dangling":
        current.symlink_to("bundle-v9")
    elif damage == "file":
        current.write_text("bundle-v1")
    elif damage == "not a manifest":
        (bundles_dir / "bundle-v9").mkdir()
        (bundles_dir / "bundle-v9" / "manifest.json").write_text("{}")
        current.symlink_to("bundle-v9")
    assert not watcher.poll()
    assert watcher.state.num_refused == 1
    assert version(watcher) == "v1"
    current.unlink(missing_ok=True)
    current.symlink_to("bundle-v1")
    assert not watcher.poll()
    assert watcher.state.refused is None


def test_bundles_folder_that_vanishes_does_not_stop_serving(watcher, bundles_dir):
    shutil.rmtree(bundles_dir)
    assert not watcher.poll()
    # What is memory-mapped stays readable after its file is unlinked.
    assert version(watcher) == "v1"


def test_damaged_bundle_at_start_is_refused(bundles_dir):
    (bundles_dir / "bundle-v1" / "index" / "items.faiss").write_bytes(b"IxFI")
    with pytest.raises(ValueError, match=r"items\.faiss has 4 bytes"):
        BundleWatcher(bundles_dir, poll_seconds=60)


def write_rivals(bundles_dir, reseal):
    """Beside v1: two other catalogues, a delta, and one whose parts disagree."""
    for number, items in (("v2", 60), ("v3", 45)):
        write_synthetic_bundle(bundles_dir, number, SyntheticSize(num_items=items, seed=items))
    write_delta(
        bundles_dir,
        "v1",
        [NewItem(item_id="fresh", display_text="")],
        content=np.zeros((1, 4)),
        item_vectors=np.full((1, 8), 0.35),
    )
    bad = shutil.copytree(bundles_dir / "bundle-v3", bundles_dir / "bundle-bad")
    shutil.copyfile(
        bundles_dir / "bundle-v2" / "two_tower" / "item_vectors.npy",
        bad / "two_tower" / "item_vectors.npy",
    )
    reseal(bad, version="bad")


def test_hundred_hot_swaps_under_load_fail_no_request(server, bundles_dir, reseal):
    url, watcher = server
    write_rivals(bundles_dir, reseal)
    num_items = {"v1": 40, "v1+1": 41, "v2": 60, "v3": 45}
    served: dict[str, int] = {}
    finished = threading.Event()

    async def ask_until_finished(session: aiohttp.ClientSession, user: int) -> None:
        while not finished.is_set():
            body = {"user_id": f"user-{user}", "k": 1000, "exclude": ["item-1"]}
            async with session.post(f"{url}/v1/recommend", json=body) as response:
                assert response.status == 200, await response.text()
                reply = json.loads(await response.read())
            bundle = reply["served_by"]["bundle"]
            served[bundle] = served.get(bundle, 0) + 1
            # Everything in one reply is from one bundle, and each history has 8 items.
            assert num_items[bundle] - 9 <= len(reply["items"]) <= num_items[bundle] - 8

    async def load() -> None:
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
            for user in range(1, 5):
                group.create_task(ask_until_finished(session, user))

    failure: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(load())
        except BaseException as error:
            failure.append(error)

    client = threading.Thread(target=run)
    client.start()
    order = ["v2", "v1+1", "v3", "v1"]
    for swap in range(100):
        if swap % 25 == 12:
            publish(bundles_dir, "bad")
            wait_for(lambda before=swap // 25: watcher.state.num_refused > before)
        wanted = order[swap % 4]
        publish(bundles_dir, wanted)
        wait_for(lambda wanted=wanted: watcher.recommender.bundle.version == wanted)
    finished.set()
    client.join()
    assert not failure, failure
    assert watcher.state.num_swaps == 100
    assert watcher.state.num_refused == 4
    assert set(served) == set(num_items)


def wait_for(true, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)


def start_server(bundles_dir, poll_seconds=1):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE],
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "RECSYS_BUNDLES": str(bundles_dir),
            "RECSYS_PORT": str(port),
            "RECSYS_POLL_SECONDS": str(poll_seconds),
            "RECSYS_LOG_REQUESTS": "false",
        },
        stderr=subprocess.PIPE,
    )
    wait_for(lambda: process.poll() is not None or answers(port), 60.0)
    return process, port


def answers(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_sigterm_answers_everything_that_was_accepted(bundles_dir):
    process, port = start_server(bundles_dir)
    outcomes: list[str] = []

    async def one(started: asyncio.Event) -> None:
        """Ask on a connection of its own, in two halves, so that SIGTERM falls between."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = json.dumps({"user_id": "user-1", "k": 40}).encode()
        head = "POST /v1/recommend HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body[:5])
        await writer.drain()
        await started.wait()
        writer.write(body[5:])
        await writer.drain()
        outcomes.append((await reader.readline()).decode().strip())
        writer.close()

    async def load() -> None:
        started = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for _ in range(20):
                group.create_task(one(started))
            # The server has read the first half of each once it answers on a later connection.
            await asyncio.sleep(0.5)
            process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.3)
            started.set()

    asyncio.run(load())
    assert outcomes == ["HTTP/1.1 200 OK"] * 20
    _, errors = process.communicate(timeout=20)
    assert process.returncode in (0, -signal.SIGTERM)
    assert b"Traceback" not in errors


def test_sighup_looks_for_a_bundle_and_lines_are_structured(bundles_dir):
    process, _ = start_server(bundles_dir, poll_seconds=3600)
    write_synthetic_bundle(bundles_dir, "v2", SyntheticSize(seed=1))
    publish(bundles_dir, "v2")
    process.send_signal(signal.SIGHUP)
    lines = [process.stderr.readline() for _ in range(3)]
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=20)[1] == b""
    events = [json.loads(line) for line in lines]
    assert [line["event"] for line in events] == ["bundle_loaded", "serving", "bundle_swapped"]
    assert (events[2]["before"], events[2]["bundle"]) == ("v1", "v2")
