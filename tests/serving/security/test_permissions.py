"""Bundles that the serving user may not read: said at start, and never served half."""

import tempfile
from pathlib import Path

import pytest

from serving.bundle.manifest import publish
from serving.settings import Settings
from tests.serving.application import create_app
from tests.serving.nobody import as_nobody
from tests.serving.synthetic_bundle import write_synthetic_bundle


@pytest.fixture(scope="module")
def readable():
    """Bundles that everyone may read; pytest's own folders are closed to others."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        write_synthetic_bundle(Path(folder) / "bundles", "v1")
        publish(Path(folder) / "bundles", "v1")
        # What is imported late must be there: this user may not be allowed to read the sources.
        create_app(Settings(bundles=Path(folder) / "bundles"))
        yield Path(folder) / "bundles"


@pytest.mark.parametrize("place", ["", "bundle-v1", "bundle-v1/manifest.json", "bundle-v1/index"])
def test_what_may_not_be_read_is_named_at_start_with_what_to_do(readable, place):
    def start():
        return create_app(Settings(bundles=readable)).recommender.bundle.version

    closed = readable / place
    mode = closed.stat().st_mode
    closed.chmod(0)
    try:
        said = as_nobody(start)
    finally:
        closed.chmod(mode)
    assert said.startswith(str(closed))
    assert "may not be read by the user that serves" in said
    assert "chmod -R a+rX" in said
    assert as_nobody(start) == "v1"
