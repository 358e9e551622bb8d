"""A server on a small bundle of a file's own, which serves ``v1`` again for each of its tests."""

import shutil

import pytest

from tests.serving.server.running import running, wait_for
from tests.serving.writable import writable


@pytest.fixture(scope="module")
def server_of_file(released, tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    bundles = shutil.copytree(released, folder / "bundles", symlinks=True)
    with running(writable(bundles), folder / "log") as server:
        yield server


@pytest.fixture
def own(server_of_file, released, tmp_path):
    """A server whose bundles may be changed: those of its ``bundles``."""
    server = server_of_file
    if server.noted:
        copy = shutil.copytree(released, tmp_path / "bundles", symlinks=True)
        swaps = server.state()["num_swaps"]
        shutil.rmtree(server.bundles, ignore_errors=True)
        writable(copy).rename(server.bundles)
        wait_for(lambda: serves_again(server.state(), swaps))
        wait_for(lambda: [len(some) for some in server.processes()] == [1, 1, 2])
    server.note()
    return server


def serves_again(state, swaps):
    """True once the copied ``v1`` is served: it has other files, so it counts as a swap."""
    whole = state["refused"] is None and state["workers"] == 2
    return whole and state["bundle"] == "v1" and state["num_swaps"] > swaps
