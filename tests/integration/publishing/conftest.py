"""A released shop that a test may change."""

from pathlib import Path

import pytest

from tests.integration.copies import copied


@pytest.fixture
def released(shop: Path, tmp_path: Path) -> tuple[Path, Path]:
    """The TOML of a released workspace's files, and the workspace, both to be changed."""
    workspace = copied(shop, tmp_path / "files")
    return workspace.parent / "shop.toml", workspace
