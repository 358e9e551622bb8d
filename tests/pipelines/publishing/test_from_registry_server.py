"""The registry behind a real MLflow server, and the commands."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pipelines.cli.main import app
from serving.recommend import Recommender
from tests.pipelines.tracking.mlflow_server import free_port, mlflow_server
from tests.pipelines.tracking.registries import Shop, bytes_of, shop_of, write_bundles


def recsys(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def shop(tmp_path: Path, port: int) -> Shop:
    made = write_bundles(tmp_path / "made")
    return shop_of(tmp_path, made, f"http://127.0.0.1:{port}", "shop")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    return tmp_path / "elsewhere" / "bundles"


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*:ResourceWarning")
def test_another_machine_follows_the_alias_knowing_the_server_alone(
    shop: Shop, elsewhere: Path, tmp_path: Path, port: int
):
    registry = ("--registry", shop.uri, "--model", "shop")
    with mlflow_server(tmp_path, port):
        assert shop.register("v1").problem is None
        found = recsys("registry", "fetch", elsewhere, "champion", *registry)
        assert found.exit_code == 0, found.output
        assert "files fetched and verified" in found.output
        assert bytes_of(elsewhere / "bundle-v1") == bytes_of(shop.bundles / "bundle-v1")
        recommender = Recommender.load(elsewhere / "current")
        assert recommender.bundle.manifest.version == "v1"

        shop.register("v2+1")
        shop.move_alias("v2")
        follow = ("registry", "follow", elsewhere, *registry)
        assert "champion is v2: moved in the registry" in recsys(*follow).output
        shop.move_alias("v2+1")
        assert "champion is v2+1: moved in the registry" in recsys(*follow).output
        assert "champion is v2+1: as the registry says" in recsys(*follow).output

    # FAULTS 27: the registry is gone; what is served goes on.
    gone = recsys(*follow)
    assert gone.exit_code == 2
    assert f"no answer from {shop.uri}" in " ".join(gone.output.split())
    gone = recsys(*follow, "--if-reachable")
    assert gone.exit_code == 0
    assert "cannot be reached, v2+1 is still served" in gone.output
    assert Recommender.load(elsewhere / "current").bundle.manifest.version == "v2+1"
