"""A shop with three bundles, a registry in SQLite and a server, for publishing and tracking."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.pipelines.tracking.mlflow_server import free_port, healthy, mlflow_server
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
def mlflow_servers() -> Iterator[tuple[ExitStack, list[int]]]:
    """MLflow servers of the session, and their ports."""
    with ExitStack() as stack:
        yield stack, []


@pytest.fixture
def mlflow_address(
    tmp_path_factory: pytest.TempPathFactory, mlflow_servers: tuple[ExitStack, list[int]]
) -> str:
    """The address of a real MLflow server, to which each test sends under names of its own.

    A server that does not answer any more is replaced.
    """
    stack, ports = mlflow_servers
    if not ports or not healthy(ports[-1]):
        ports.append(free_port())
        stack.enter_context(mlflow_server(tmp_path_factory.mktemp("mlflow"), ports[-1]))
    return f"http://127.0.0.1:{ports[-1]}"


@pytest.fixture
def shop(tmp_path: Path, made: Path, uri: str, request: pytest.FixtureRequest) -> Shop:
    """A workspace with those bundles."""
    return shop_of(tmp_path, made, uri, request.node.name[:60])
