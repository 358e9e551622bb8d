"""Bundles that the serving user may not read: said at start, and never served half."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from serving.bundle.manifest import publish
from tests.serving.synthetic_bundle import write_synthetic_bundle

ROOT = Path(__file__).parents[2]

# Loads once as root, so that every module is imported: the user it becomes may not be allowed to
# read the sources.
CHILD = """
import os, sys
from pathlib import Path
from serving.settings import Settings
from tests.serving.application import create_app
bundles = Path(sys.argv[1])
if os.geteuid() == 0:
    create_app(Settings(bundles=bundles))
    os.setuid(65534)
for line in sys.stdin:
    try:
        served = create_app(Settings(bundles=bundles)).recommender
        reported = f"{served.bundle.version} serves"
    except ValueError as error:
        reported = f"ValueError: {error}"
    print(reported.replace(chr(10), " "), flush=True)
"""


class Server:
    """A process without root's rights that is made to start, or to look at ``current``."""

    def __init__(self, bundles):
        sources = bundles.parent / "sources"
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", CHILD, str(bundles)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": str(sources),
                "OMP_NUM_THREADS": "1",
            },
            cwd=sources,
        )

    def ask(self, what):
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=30)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def readable():
    """Bundles that everyone may read; pytest's own folders are closed to others."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        bundles = Path(folder) / "bundles"
        bundles.mkdir(mode=0o755)
        write_synthetic_bundle(bundles, "v1")
        publish(bundles, "v1")
        # A checkout may be closed to others too.
        for package in ("recsys", "serving"):
            shutil.copytree(ROOT / package, Path(folder) / "sources" / package)
        yield bundles


@pytest.fixture(scope="module")
def server(readable):
    child = Server(readable)
    yield child
    child.close()


PLACES = ["", "bundle-v1", "bundle-v1/manifest.json", "bundle-v1/index/items.faiss"]


@pytest.mark.parametrize("place", [*PLACES, "bundle-v1/catalogue", "bundle-v1/two_tower"])
def test_what_may_not_be_read_is_named_at_start_with_what_to_do(server, readable, place):
    closed = readable / place
    mode = closed.stat().st_mode
    closed.chmod(0)
    try:
        reported = server.ask("start")
    finally:
        closed.chmod(mode)
    assert reported.startswith(f"ValueError: {closed}")
    assert "may not be read by the user that serves" in reported
    assert "chmod -R a+rX" in reported
    assert server.ask("start").startswith("v1 serves")
