import json

import pytest
from typer.testing import CliRunner

from pipelines.cli.main import app
from pipelines.cli.release import enter_registry
from pipelines.config.operation import TrackingConfig
from pipelines.publishing.promotion import champions, note_champion
from pipelines.tracking.outbox import open_outbox, read_lines, store_uri
from serving.bundle.manifest import read_manifest
from tests.pipelines.tracking.registries import write_bundles
from tests.serving.synthetic_bundle import write_synthetic_bundle


@pytest.mark.slow
def test_a_run_is_tracked_from_its_curves_to_its_champion(tmp_path, tiny_shop, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    workspace = tmp_path / "run"
    tracked = ["--set", "tracking.enabled=true", "--set", "tracking.model=shop"]

    arguments = ["run", "-q", str(tiny_shop), "--set", f"workspace={workspace}", *tracked]
    result = CliRunner().invoke(app, arguments)

    assert result.exit_code == 0, result.output
    assert open_outbox(workspace).waiting() == []
    from mlflow.tracking import MlflowClient

    uri = store_uri(TrackingConfig(), open_outbox(workspace))
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    experiment = client.get_experiment_by_name("recsys")
    assert experiment is not None
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    metrics = json.loads((workspace / "evaluate" / "metrics.json").read_text())
    blend = metrics["given"]["test"]["blend"]["ndcg@10"]
    assert runs["evaluate"].data.metrics["given/test/blend/ndcg_at_10"] == blend
    curve = (workspace / "train_two_tower" / "given" / "curve.jsonl").read_text().splitlines()
    losses = [row for row in map(json.loads, curve) if "loss" in row]
    trained = runs["train_two_tower"]
    history = client.get_metric_history(trained.info.run_id, "given/loss")
    assert [point.step for point in history] == [row["step"] for row in losses]
    assert trained.data.params["two_tower_training.batch_size"] == "64"
    assert "data.build_features" in trained.data.tags
    champion = client.get_model_version_by_alias("shop", "champion")
    served = (workspace / "bundles" / "current").resolve()
    assert champion.source == f"bundle://{served}"
    assert champion.tags["bundle_digest"] == read_manifest(served)[1]
    assert champions(workspace / "bundles") == [champion.tags["bundle"]]


def test_promote_and_rollback_go_on_without_a_server(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    bundles = tmp_path / "bundles"
    bundles.mkdir()
    for version in ("v1", "v2"):
        write_synthetic_bundle(bundles, version)
        result = CliRunner().invoke(app, ["release", "promote", str(bundles), version])
        assert result.exit_code == 0, result.output
    assert "no answer from http://127.0.0.1:9" in " ".join(result.output.split())

    result = CliRunner().invoke(app, ["release", "rollback", str(bundles)])

    assert result.exit_code == 0, result.output
    assert "champion is v1 (before: v2)" in result.output
    assert (bundles / "current").resolve().name == "bundle-v1"
    result = CliRunner().invoke(app, ["registry", "send", str(tmp_path)])
    assert result.exit_code == 75
    assert "3 waiting" in result.output


def test_appended_items_are_entered_into_the_registry_of_a_run_s_workspace(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    bundles = write_bundles(tmp_path / "bundles")
    change = note_champion(bundles, "v2+1", "append")
    enter_registry(bundles, change)
    assert not (tmp_path / "tracking").exists(), "a folder that no run made has no registry"

    (tmp_path / "config.toml").write_text("")
    enter_registry(bundles, change)
    (path,) = open_outbox(tmp_path).waiting()
    logged = [(event["event"], event.get("version")) for event in read_lines(path)]
    assert logged == [("register", "v2+1"), ("alias", "v2+1"), ("end", None)]
