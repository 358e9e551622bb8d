import shutil
from pathlib import Path

import pytest

from pipelines.cli.options import find_served
from serving.bundle.manifest import publish
from serving.settings import Settings
from tests.serving.application import create_app
from tests.serving.synthetic_bundle import write_synthetic_bundle


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """Two bundles, of which ``v2`` is published."""
    for version in ("v1", "v2"):
        write_synthetic_bundle(tmp_path / "bundles", version)
    publish(tmp_path / "bundles", "v2")
    return tmp_path


def test_a_folder_is_followed_and_a_bundle_served_whatever_is_published(workspace):
    for named in (".", "bundles", "bundles/current"):
        assert find_served(workspace / named) == (workspace / "bundles", None)
    bundles, name = find_served(workspace / "bundles/bundle-v1")
    assert (bundles, name) == (workspace / "bundles", "bundle-v1")
    settings = Settings.from_environment({}, bundles=bundles, bundle=name)
    for published in ("v1", "v2"):
        publish(bundles, published)
        assert create_app(settings).recommender.bundle.version == "v1"


def test_a_pinned_bundle_that_is_gone_is_named(workspace):
    shutil.rmtree(workspace / "bundles/bundle-v1")
    with pytest.raises(ValueError, match=r"no bundle at .*bundle-v1; make one with"):
        find_served(workspace / "bundles/bundle-v1")
    settings = Settings(bundles=workspace / "bundles", bundle="bundle-v1")
    with pytest.raises(ValueError, match=r"bundle-v1 does not exist \(found bundle-v2"):
        create_app(settings)
