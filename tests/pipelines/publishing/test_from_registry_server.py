"""The registry behind a real MLflow server, and the commands."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pipelines.cli.main import app
from pipelines.publishing.promotion import record_champion, served_version
from pipelines.tracking.tracking import sync_outbox
from serving.recommend import Recommender
from tests.pipelines.tracking.mlflow_server import free_port, mlflow_server
from tests.pipelines.tracking.registries import Shop, bytes_of, child, shop_of, write_bundles


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
        found = recsys("fetch-bundle", "champion", "-b", elsewhere, *registry)
        assert found.exit_code == 0, found.output
        assert "files fetched and verified" in found.output
        assert bytes_of(elsewhere / "bundle-v1") == bytes_of(shop.bundles / "bundle-v1")
        recommender = Recommender.load(elsewhere / "current")
        assert recommender.bundle.manifest.version == "v1"

        shop.register("v2+1")
        shop.move_alias("v2")
        follow = ("promote", "--from-registry", "-b", elsewhere, *registry)
        assert "champion is v2: moved in the registry" in recsys(*follow).output
        shop.move_alias("v2+1")
        assert "champion is v2+1: moved in the registry" in recsys(*follow).output
        assert "champion is v2+1: as the registry says" in recsys(*follow).output

    # FAULTS 27: the registry is gone; what is served goes on.
    gone = recsys(*follow)
    assert gone.exit_code == 2
    assert f"no answer from the registry {shop.uri}" in " ".join(gone.output.split())
    gone = recsys(*follow, "--if-reachable")
    assert gone.exit_code == 0
    assert "cannot be reached, v2+1 goes on being served" in gone.output
    assert Recommender.load(elsewhere / "current").bundle.manifest.version == "v2+1"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*:ResourceWarning")
def test_a_server_killed_in_the_middle_of_an_upload_gets_the_rest_later(
    shop: Shop, elsewhere: Path, tmp_path: Path, port: int
):
    record_champion(shop.outbox, "shop", shop.bundles, "v1", "promote")
    config = replace(shop.config, request_seconds=2)
    with mlflow_server(tmp_path, port) as server:
        done = child(
            *("uploads", 5, f"os.killpg({server}, signal.SIGKILL)"),
            *(str(shop.outbox.path), json.dumps(asdict(config))),
        )
    assert json.loads(done.stdout.splitlines()[-1])["waiting"] == 4
    served = tmp_path / "served"
    begun = {path: path.stat().st_ino for path in served.rglob("*") if path.is_file()}
    assert len(begun) == 5

    with mlflow_server(tmp_path, port):
        assert sync_outbox(shop.outbox, shop.config).problem is None
        assert {path: path.stat().st_ino for path in begun} == begun
        assert shop.champion() == "v1"
        options = ("--registry", shop.uri, "--model", "shop")
        assert recsys("fetch-bundle", "v1", "-b", elsewhere, *options).exit_code == 0
    assert bytes_of(elsewhere / "bundle-v1") == bytes_of(shop.bundles / "bundle-v1")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*:ResourceWarning")
def test_a_server_gone_in_the_middle_of_a_fetch_leaves_the_old_bundle_serving(
    shop: Shop, elsewhere: Path, tmp_path: Path, port: int
):
    options = ("-b", elsewhere, "--registry", shop.uri, "--model", "shop")
    follow = ("promote", "--from-registry", *options)
    with mlflow_server(tmp_path, port) as server:
        shop.register("v1")
        assert recsys("fetch-bundle", "v1", *options).exit_code == 0
        shop.register("v2")
        request = {"what": "fetch", "name": "v2", "bundles": str(elsewhere), "uri": shop.uri}
        words = json.dumps({**request, "config": {**asdict(shop.config), "request_seconds": 2}})
        done = child("downloads", 5, f"os.killpg({server}, signal.SIGKILL)", words)
    assert "unreachable" in json.loads(done.stdout.splitlines()[-1])
    assert served_version(elsewhere) == "v1"
    assert not (elsewhere / "bundle-v2").exists()
    assert recsys(*follow, "--if-reachable").exit_code == 0

    with mlflow_server(tmp_path, port):
        found = recsys(*follow)
    assert found.exit_code == 0, found.output
    assert served_version(elsewhere) == "v2"
    assert bytes_of(elsewhere / "bundle-v2") == bytes_of(shop.bundles / "bundle-v2")


def test_options_that_contradict_each_other_are_refused(shop: Shop):
    found = recsys("promote", "v1", "--from-registry", "-b", shop.bundles)
    assert found.exit_code == 2
    assert "leave one out" in " ".join(found.output.split())
    found = recsys("promote", "v1", "--if-reachable", "-b", shop.bundles)
    assert found.exit_code == 2
    assert "are for --from-registry" in " ".join(found.output.split())
