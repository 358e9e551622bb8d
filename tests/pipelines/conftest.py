"""A shop with three bundles, a registry in SQLite and a server, for publishing and tracking."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipelines.tracking.mlflow_server import free_port, mlflow_server
from tests.pipelines.tracking.registries import Shop, shop_of, write_bundles


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with v1, v2 and v2+1; tests copy it."""
    return write_bundles(tmp_path_factory.mktemp("made") / "bundles")


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a registry that the tests of a file share, each with a model of its own."""
    return f"sqlite:///{tmp_path_factory.mktemp('store') / 'mlflow.db'}"


@pytest.fixture(scope="session")
def mlflow_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real MLflow server, to which each test sends under names of its own."""
    port = free_port()
    with mlflow_server(tmp_path_factory.mktemp("mlflow"), port):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def shop(tmp_path: Path, made: Path, uri: str, request: pytest.FixtureRequest) -> Shop:
    """A workspace with those bundles."""
    return shop_of(tmp_path, made, uri, request.node.name[:60])
