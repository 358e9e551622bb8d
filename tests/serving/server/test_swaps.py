"""Bundles that are published while a server runs: taken whole, or refused and the old one kept."""

import asyncio
import itertools
import os
import shutil
import signal

import numpy as np
import psutil
import pytest

from recsys.data.durable import replace_link
from serving.bundle.delta import NewItem, write_delta
from serving.bundle.manifest import publish
from tests.serving.server.running import Load, RunningServer, wait_for
from tests.serving.synthetic_bundle import SyntheticSize, write_synthetic_bundle
from tests.serving.writable import writable

SWAPS = int(os.environ.get("RECSYS_SWAPS", "12"))


@pytest.fixture
def own(server_of_file, released, tmp_path):
    """A server whose ``bundles`` may be changed; it serves ``v1`` again before each test."""
    server = server_of_file
    if server.noted:
        copy = shutil.copytree(released, tmp_path / "bundles", symlinks=True)
        swaps = server.state()["num_swaps"]
        shutil.rmtree(server.bundles, ignore_errors=True)
        writable(copy).rename(server.bundles)
        wait_for(lambda: serves_again(server.state(), swaps))
    server.note()
    return server


def serves_again(state, swaps):
    """True once the copied ``v1`` is served: it has other files, so it counts as a swap."""
    return state["refused"] is None and state["bundle"] == "v1" and state["num_swaps"] > swaps


def served(server):
    return server.get("/v1/recommend", {"k": 1})[1]["served_by"]["bundle"]


def until_serves(server, version):
    wait_for(lambda: server.state().get("bundle") == version)
    assert served(server) == version


def mix(bundle, other, bad, reseal):
    """Make a bundle whose index is one of other dimensions."""
    shutil.copytree(bundle, bad)
    for name in ("items.faiss", "items.faiss.json"):
        (bad / "index" / name).unlink()
        shutil.copyfile(other / "index" / name, bad / "index" / name)
    reseal(bad, version=bad.name.removeprefix("bundle-"))


def until_refused(server, count):
    wait_for(lambda: server.count("num_refused") == count)
    return wait_for(lambda: server.state()["refused"])


def test_published_bundles_are_taken_and_damaged_ones_refused(own, reseal):
    bundles_dir = own.bundles
    write_synthetic_bundle(bundles_dir, "v2", SyntheticSize(num_items=60, seed=1))
    publish(bundles_dir, "v2")
    until_serves(own, "v2")
    # Rolling back is the same move, and so is a delta.
    publish(bundles_dir, "v1")
    until_serves(own, "v1")
    item = NewItem(item_id="fresh", display_text="Fresh")
    write_delta(
        bundles_dir, "v1", [item], content=np.zeros((1, 4)), item_vectors=np.full((1, 8), 0.35)
    )
    publish(bundles_dir, "v1+1")
    until_serves(own, "v1+1")
    assert own.get("/v1/similar/fresh?k=3")[0] == 200
    # The release stays in memory, for the next delta of it.
    wait_for(lambda: len(own.loaders()) == 2)
    publish(bundles_dir, "v2")
    until_serves(own, "v2")
    wait_for(lambda: len(own.loaders()) == 1)
    publish(bundles_dir, "v1+1")
    until_serves(own, "v1+1")
    other = write_synthetic_bundle(bundles_dir, "v3", SyntheticSize(embedding_dim=16))
    mix(bundles_dir / "bundle-v2", other, bundles_dir / "bundle-bad", reseal)
    publish(bundles_dir, "bad")
    reason = until_refused(own, 1)
    assert "items.faiss is 41 x 16, the rest of the bundle needs 61 x 8" in reason
    assert served(own) == "v1+1"
    publish(bundles_dir, "v3")
    until_serves(own, "v3")
    assert own.state()["refused"] is None
    assert own.count("num_swaps") == 6


def test_whatever_current_becomes_the_old_one_serves(own):
    bundles_dir = own.bundles
    current = bundles_dir / "current"
    (bundles_dir / "bundle-v9").mkdir()
    (bundles_dir / "bundle-v9" / "manifest.json").write_text("{}")
    for refused, target in enumerate(["bundle-v8", "current", "bundle-v9"], start=1):
        current.unlink()
        current.symlink_to(target)
        until_refused(own, refused)
        assert served(own) == "v1"
        assert own.state()["watching"]
    current.unlink()
    current.write_text("bundle-v1")
    until_refused(own, 4)
    current.unlink()
    current.symlink_to("bundle-v1")
    wait_for(lambda: own.state()["refused"] is None)
    shutil.rmtree(bundles_dir)
    until_refused(own, 5)
    assert served(own) == "v1"


@pytest.mark.timeout(120 + 5 * SWAPS)
def test_swaps_under_load_fail_no_request_and_one_that_does_not_fit_is_refused(own, reseal):
    bundles_dir = own.bundles
    write_synthetic_bundle(bundles_dir, "v2", SyntheticSize(num_items=60, seed=60))
    size = SyntheticSize(num_items=45, embedding_dim=16, seed=45)
    other = write_synthetic_bundle(bundles_dir, "v3", size)
    mix(bundles_dir / "bundle-v2", other, bundles_dir / "bundle-bad", reseal)
    order = itertools.cycle(["v2", "v3", "v1"])

    async def until(version):
        await asyncio.to_thread(publish, bundles_dir, version)
        await asyncio.to_thread(wait_for, lambda: own.state().get("bundle") == version)

    async def swap_under_load():
        async with Load(own) as load:
            for _ in range(SWAPS // 2):
                await until(next(order))
            serving = own.state()["bundle"]
            await asyncio.to_thread(publish, bundles_dir, "bad")
            assert "items.faiss is" in await asyncio.to_thread(until_refused, own, 1)
            assert served(own) == serving
            for _ in range(SWAPS - SWAPS // 2):
                await until(next(order))
        return load

    load = asyncio.run(swap_under_load())
    assert set(load.statuses) == {200}
    assert set(load.bundles) == {"v1", "v2", "v3"}
    assert (own.count("num_swaps"), own.count("num_refused")) == (SWAPS, 1)
    # What was replaced is gone with its processes.
    wait_for(lambda: [len(some) for some in own.processes()] == [1, 1, 2])


def test_bundle_that_is_damaged_at_start_is_named(bundles_dir, tmp_path):
    path = bundles_dir / "bundle-v1" / "index" / "items.faiss"
    path.chmod(0o644)
    path.write_bytes(b"IxFI")
    server = RunningServer(bundles_dir, tmp_path / "log")
    assert server.process.wait(timeout=60) == 1
    assert "items.faiss has 4 bytes" in server.log.read_text()


def test_damage_is_repaired_by_a_signal(own):
    bundles_dir = own.bundles
    directory = write_synthetic_bundle(bundles_dir, "v2", SyntheticSize(seed=1))
    path = directory / "popularity" / "popularity.safetensors"
    content = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(content[:-1])
    # Publishing itself would refuse it.
    replace_link(bundles_dir / "current", "bundle-v2")
    assert "popularity.safetensors has" in until_refused(own, 1)
    path.write_bytes(content)
    own.process.send_signal(signal.SIGHUP)
    until_serves(own, "v2")


def test_truncated_file_under_a_worker_ends_at_the_last_good_bundle(own):
    """The kernel kills who reads what is no longer there; others must not notice for long."""
    bundles_dir = own.bundles
    write_synthetic_bundle(bundles_dir, "v2", SyntheticSize(seed=1))
    publish(bundles_dir, "v2")
    until_serves(own, "v2")
    for path in (bundles_dir / "bundle-v2").rglob("*.npy"):
        path.chmod(0o644)
        os.truncate(path, 0)
    for worker in own.processes()[2]:
        # What the kernel does at the first read; which page that is depends on the machine.
        worker.send_signal(signal.SIGBUS)
    wait_for(lambda: own.state().get("bundle") == "v1")
    assert served(own) == "v1"
    assert "SIGBUS" in {line["reason"] for line in own.events("worker_ended")}
    assert own.events("bundle_reloaded")[0]["bundle"] == "v1"


# The last of this file: it ends the server that the others share.
def test_all_processes_end_with_the_front(own):
    wait_for(own.request_logs)
    everyone = psutil.Process(own.process.pid).children(recursive=True)
    assert len(everyone) >= 5
    own.process.kill()
    own.process.wait()
    wait_for(lambda: not any(one.is_running() for one in everyone))
