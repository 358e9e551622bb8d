"""Workspaces with bundles of different ages."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.serving.synthetic_bundle import write_synthetic_bundle

Aged = Callable[[Path, float], None]


@pytest.fixture
def aged() -> Aged:
    """Make a folder and what lies in it so many days old: aged(folder, days)."""

    def age(folder: Path, days: float) -> None:
        then = time.time() - 86_400 * days
        for path in [*folder.rglob("*"), folder]:
            os.utime(path, (then, then), follow_symlinks=False)

    return age


@pytest.fixture(scope="session")
def five_bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five bundles, v1 to v5, none of them published; not to be changed."""
    folder = tmp_path_factory.mktemp("five")
    for number in range(1, 6):
        write_synthetic_bundle(folder, f"v{number}")
    return folder
