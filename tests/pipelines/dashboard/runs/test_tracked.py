"""Runs of MLflow stores: listed once, with what people tagged, and never opened in vain."""

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from pipelines.config.tracking import TrackingConfig
from pipelines.dashboard.runs import tracked
from pipelines.dashboard.runs.run import Run
from pipelines.dashboard.runs.stores import Places, Stores
from pipelines.dashboard.runs.tracked import TrackedRuns, earlier_evaluations
from pipelines.dashboard.runs.workspaces import read_workspace
from pipelines.engine.artifacts import Manifest
from pipelines.tracking.history import StoreHistory, TrackedRun, read_stores
from pipelines.tracking.tracking import outbox_of, sync_outbox
from tests.pipelines.dashboard.synthetic_runs import write_run, write_stage
from tests.pipelines.tracking.mlflow_server import client

CONFIG = TrackingConfig(sync_seconds=120.0, upload_bundles=False)
METRICS = {
    "given/test/blend/ndcg@10": 0.12,
    "given/test/blend/ndcg@10/low": 0.1,
    "given/test/blend/slices/user/new/ndcg@10": 0.05,
    "shuffled/test/blend/ndcg@10": 0.9,
    "given/test/blend/mrr@10": float("nan"),
    "run/seconds": 3.0,
}


def log_evaluation(workspace: Path, **values: float) -> None:
    """Track the evaluation that a workspace has, as a run of the stage does."""
    planned = Manifest.read(workspace / "evaluate")
    assert planned is not None
    with outbox_of(workspace).start_run(planned) as run:
        run.metrics({**METRICS, **values})
        run.artifact(workspace / "config.toml")


@pytest.fixture(scope="module")
def tracked_shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with two evaluations in its store; somebody tagged the newest, others log too."""
    root = tmp_path_factory.mktemp("tracked")
    shop = write_run(root / "shop", width=32)
    log_evaluation(shop)
    write_stage(shop / "evaluate", inputs={"build_features": "other"})
    log_evaluation(shop, **{"given/test/blend/ndcg@10": 0.2})
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("MLFLOW_TRACKING_URI", raising=False)
        assert sync_outbox(outbox_of(shop), CONFIG).waiting == 0
    store = client(f"sqlite:///{shop / 'tracking/mlflow.db'}")
    experiment = store.get_experiment_by_name("recsys").experiment_id
    newest = store.search_runs([experiment], "metrics.`given/test/blend/ndcg_at_10` > 0.15")
    store.set_tag(newest[0].info.run_id, "team", "search <b>")
    other = store.create_run(experiment, run_name="a notebook")
    store.log_metric(other.info.run_id, "loss", 0.5)
    store.set_terminated(other.info.run_id)
    return shop


def test_a_run_that_both_have_is_listed_once_with_its_tags(tracked_shop: Path) -> None:
    found = Stores(Places(roots=[tracked_shop])).runs()
    assert sorted(run.kind for run in found) == ["mlflow", "mlflow", "workspace"]
    newest = next(run for run in found if run.kind == "workspace")
    assert newest.tags["team"] == "search <b>"
    assert "mlflow" in newest.tags


def test_earlier_evaluations_and_runs_of_others_have_what_was_logged(tracked_shop: Path) -> None:
    stores = Stores(Places(roots=[], mlflow=[f"sqlite:///{tracked_shop / 'tracking/mlflow.db'}"]))
    runs = {run.name: run for run in stores.runs()}
    earlier = next(run for run in runs.values() if run.metrics.get("test/blend/ndcg@10") == 0.12)
    assert earlier.metrics == {"test/blend/ndcg@10": 0.12}
    assert earlier.problems == (
        "metrics that are no numbers are left out: test/blend/mrr@10 (nan)",
    )
    assert (earlier.status, earlier.served, earlier.dataset) == (
        "complete",
        "blend",
        "movielens-100k",
    )
    assert earlier.config["two_tower.embedding_dim"] == "32"
    assert earlier.name.startswith("shop 20")
    assert runs["a notebook"].metrics == {"logged/run/loss": 0.5}
    assert len(runs) <= 3


def test_only_runs_from_a_time_on_are_read(tracked_shop: Path) -> None:
    uri = f"sqlite:///{tracked_shop / 'tracking/mlflow.db'}"
    found = read_stores({uri: 10**14, "sqlite:////nowhere/mlflow.db": 0, "http://127.0.0.1:9": 0})
    assert found[uri] == StoreHistory()
    assert found["sqlite:////nowhere/mlflow.db"].problem == "/nowhere/mlflow.db does not exist"
    assert found["http://127.0.0.1:9"].problem == "no answer"
    assert not Path("/nowhere").exists()


def test_a_store_without_other_evaluations_is_not_opened(
    tracked_shop: Path, tmp_path: Path
) -> None:
    assert earlier_evaluations(read_workspace(tracked_shop)) is not None
    shutil.copytree(tracked_shop, tmp_path / "shop")
    for path in sorted((tmp_path / "shop/tracking/outbox/sent").iterdir())[:1]:
        path.unlink()
    assert earlier_evaluations(read_workspace(tmp_path / "shop")) is None


def test_a_store_that_vanishes_keeps_what_was_read_and_is_said(
    tracked_shop: Path, tmp_path: Path
) -> None:
    path = tmp_path / "mlflow.db"
    shutil.copyfile(tracked_shop / "tracking/mlflow.db", path)
    uri = f"sqlite:///{path}"
    runs = TrackedRuns(rest=0.0)
    assert runs.problems([uri]) == [f"the MLflow store {uri} is being read"]
    runs.read(runs.stale([uri]))
    assert (runs.stale([uri]), runs.problems([uri])) == ([], [])
    before = runs.merged([uri], [])
    path.unlink()
    assert runs.stale([uri]) == [uri]
    runs.read([uri])
    assert runs.merged([uri], []) == before
    assert runs.problems([uri]) == [f"the MLflow store {uri} cannot be read: {path} does not exist"]


def test_a_store_is_listed_once_its_runs_are_built(
    tracked_shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread merges while the runs of a store are being built."""
    uri = f"sqlite:///{tracked_shop / 'tracking/mlflow.db'}"
    runs, build = TrackedRuns(rest=0.0), tracked._run_of
    meanwhile = []

    def building(found: TrackedRun, uri: str) -> Run:
        meanwhile.append(runs.merged([uri], []))
        return build(found, uri)

    monkeypatch.setattr(tracked, "_run_of", building)
    runs.read([uri])
    assert meanwhile == [[], [], []]
    assert len(runs.merged([uri], [])) == 3


def test_a_look_that_fails_is_said_and_the_next_one_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = Stores(Places(roots=[tmp_path]), watch=True, every=0.0)
    look, looks = stores._tracked.merged, iter(range(10**9))

    def broken(uris: Sequence[str], runs: Sequence[Run]) -> list[Run]:
        if next(looks) == 0:
            raise KeyError("sqlite:///mlflow.db abc")
        return look(uris, runs)

    monkeypatch.setattr(stores._tracked, "merged", broken)
    stores.now()
    write_run(tmp_path / "shop", width=32)
    deadline = time.monotonic() + 30
    while not stores.runs():
        assert time.monotonic() < deadline, stores.problems()
        time.sleep(0.01)


def test_stores_that_rest_are_not_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    read: list[dict[str, int]] = []

    def reading(stores: dict[str, int]) -> dict[str, StoreHistory]:
        read.append(stores)
        return {uri: StoreHistory() for uri in stores}

    monkeypatch.setattr(tracked, "read_stores", reading)
    runs = TrackedRuns(rest=1000.0)
    runs.read(runs.stale(["http://server"]))
    assert runs.stale(["http://server"]) == []
    assert read == [{"http://server": 0}]
