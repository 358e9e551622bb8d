"""What is written and published is there, whole, after the power fails."""

from pathlib import Path

import pytest

from pipelines.engine.decisions import CHAMPION, history
from pipelines.publishing.promotion import note_champion
from serving.bundle.load import load_bundle
from serving.bundle.write import write_bundle
from tests.fake_disk import fake_disk
from tests.serving.synthetic_bundle import SyntheticSize, synthetic_parts, write_synthetic_bundle

SMALL = SyntheticSize(num_items=30, num_users=10)


@pytest.fixture
def bundles(tmp_path: Path) -> Path:
    """A folder with a published bundle."""
    folder = tmp_path / "bundles"
    write_synthetic_bundle(folder, "v1", SMALL)
    note_champion(folder, "v1", "release")
    return folder


def test_a_published_bundle_is_served_after_a_power_cut(bundles: Path, tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    parts = synthetic_parts(tmp_path / "parts", SMALL)
    with fake_disk(bundles) as disk:
        write_bundle(bundles, parts, version="v2")
        note_champion(bundles, "v2", "release")
        disk.cut_power()
    assert load_bundle(bundles / "current").version == "v2"
    assert [change.version for change in history(bundles) if change.alias == CHAMPION] == [
        "v1",
        "v2",
    ]
