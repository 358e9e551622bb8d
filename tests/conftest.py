"""What all tests share: a small shop, folders built once a session, and what was not run."""

import fcntl
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.forked.children import ForkingSubprocess
from tests.forked.commands import command_server
from tests.recsys.testing.synthetic import markov_world, write_csv

CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
BuiltOnce = Callable[[str, Callable[[Path], None]], Path]
ON_A_GPU = "those marked gpu (needs a CUDA device: .venv/bin/python -m pytest -m gpu tests)"

TINY_SHOP = """
preset = "shop"
auto.enabled = false
device = "cpu"
tracking.enabled = false
[data]
events = "events.csv"
items = "items.csv"
[features]
context_features = []
[content]
encoder = "hash"
[two_tower]
embedding_dim = 16
hidden_dim = 32
max_history = 10
num_uniform_negatives = 1000
backend = "torch"
[two_tower_training]
batch_size = 64
max_epochs = 3.0
[search]
[release]
min_gain_over_popularity = -1
"""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Read only files with GPU tests where those are wanted: others need more libraries."""
    if config.option.markexpr != "gpu":
        return None
    files = collection_path.rglob("test_*.py") if collection_path.is_dir() else [collection_path]
    texts = (file.read_text() for file in files if file.name.startswith("test_"))
    return None if any("mark.gpu" in one or "RUNS_KERNELS" in one for one in texts) else True


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Iterator[None]:
    """Say in one line what was not run, and the commands that would run it."""
    yield
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", [])
    )
    left_out = [f"{count} ({reason})" for reason, count in reasons.most_common()]
    if config.option.markexpr == "not gpu":
        left_out.append(ON_A_GPU)
    if left_out:
        terminalreporter.write_line(f"not run: {'; '.join(left_out)}")


@pytest.fixture(scope="session", autouse=True)
def forked_children(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fork MLflow's children from a process that has imported it; importing takes seconds each."""
    try:
        from pipelines.tracking import outbox
    except ModuleNotFoundError:
        # Tests of a GPU need torch, numpy and safetensors alone.
        yield
        return
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        forking = ForkingSubprocess(tmp_path_factory.mktemp("mlflow"), stack)
        patch.setattr(outbox, "subprocess", forking)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_disks() -> Iterator[None]:
    """Leave files in the kernel's cache: no test loses power, and syncing takes minutes in all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="session")
def forking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of the process in whose forks programs run, see `tests.forked.commands`."""
    with command_server(tmp_path_factory.mktemp("forked")) as address:
        yield address


@pytest.fixture(scope="session")
def built_once(tmp_path_factory: pytest.TempPathFactory) -> BuiltOnce:
    """Build a folder once, however many processes run the session: built_once(name, build).

    Each process has a copy of its own, so its tests may change it.
    """
    own = tmp_path_factory.getbasetemp()
    common = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def copy_of(name: str, build: Callable[[Path], None]) -> Path:
        original, done = common / f"built-{name}", common / f"built-{name}.done"
        with (common / f"built-{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                shutil.rmtree(original, ignore_errors=True)
                original.mkdir()
                build(original)
                done.touch()
        copy = tmp_path_factory.mktemp(name)
        shutil.copytree(original, copy, symlinks=True, dirs_exist_ok=True)
        return copy

    return copy_of


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Open a browser until the module ends: while it is open, no test can run an event loop."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs Playwright: make install")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def tiny_shop(tmp_path: Path) -> Path:
    """Write a small world and the settings of a run over it that takes seconds; name the TOML."""
    write_csv(markov_world(), tmp_path)
    path = tmp_path / "shop.toml"
    path.write_text(TINY_SHOP)
    return path
