"""A server on a small bundle of a file's own."""

import shutil

import pytest

from tests.serving.server.running import running, wait_for
from tests.serving.writable import writable


@pytest.fixture(scope="module")
def server_of_file(released, tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    bundles = shutil.copytree(released, folder / "bundles", symlinks=True)
    # A loaded machine may keep its workers waiting for longer than the default.
    with running(writable(bundles), folder / "log", queue_ms=5_000) as server:
        yield server


@pytest.fixture
def own(server_of_file):
    """A server whose processes may be killed; it is whole again before each test of a file."""
    wait_for(lambda: [len(some) for some in server_of_file.processes()] == [1, 1, 2])
    server_of_file.note()
    return server_of_file
