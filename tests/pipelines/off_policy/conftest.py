import pytest

from serving.recommend import Recommender
from tests.pipelines.off_policy.shop import serve
from tests.serving.synthetic_bundle import write_synthetic_bundle


@pytest.fixture(scope="session")
def bundle_path(tmp_path_factory):
    return write_synthetic_bundle(tmp_path_factory.mktemp("bundles"), "v1")


@pytest.fixture(scope="session")
def bundle(bundle_path):
    return Recommender.load(bundle_path).bundle


@pytest.fixture(scope="session")
def exported(bundle, tmp_path_factory):
    """Lists that a surface drew with epsilon 0.5, and clicks; shared, so not to be changed."""
    return serve(bundle, tmp_path_factory.mktemp("shop"))
