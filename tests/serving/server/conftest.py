"""Servers on a small bundle; one is shared by tests that leave it as it was."""

import pytest

from tests.serving.server.running import running


@pytest.fixture(scope="module")
def shared(released, tmp_path_factory):
    with running(released, tmp_path_factory.mktemp("shared") / "log") as server:
        yield server


@pytest.fixture
def own(bundles_dir, tmp_path):
    """A server whose bundles may be changed."""
    with running(bundles_dir, tmp_path / "log") as server:
        yield server
