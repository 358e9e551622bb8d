"""A server on a small bundle of the test's own."""

import pytest

from tests.serving.server.running import running


@pytest.fixture
def own(bundles_dir, tmp_path):
    """A server whose bundles may be changed."""
    with running(bundles_dir, tmp_path / "log") as server:
        yield server
