"""A released shop that a test may change."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def released(shop: Path, tmp_path: Path) -> tuple[Path, Path]:
    """The TOML of a released workspace's files, and the workspace, both to be changed."""
    files, workspace = tmp_path / "files", tmp_path / "run"
    files.mkdir()
    for path in shop.parent.iterdir():
        if path.is_file():
            shutil.copyfile(path, files / path.name)
    shutil.copytree(shop, workspace, symlinks=True)
    return files / "shop.toml", workspace
