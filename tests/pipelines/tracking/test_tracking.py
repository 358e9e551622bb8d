"""Runs are files until a store has them, however long it is away."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.config.operation import TrackingConfig
from pipelines.engine.artifacts import Manifest
from pipelines.tracking.outbox import (
    Outbox,
    OutboxRun,
    SyncResult,
    open_outbox,
    read_lines,
    store_uri,
    sync_outbox,
)
from pipelines.tracking.store import store_name
from tests.pipelines.tracking.mlflow_server import NOWHERE, client

CONFIG = TrackingConfig(sync_seconds=120.0, request_seconds=60)
NAN, INFINITY = float("nan"), float("inf")


def start(outbox: Outbox, stage: str = "train_two_tower", key: str = "abc") -> OutboxRun:
    return outbox.start_run(
        Manifest(
            stage=stage,
            inputs={"events": "d1"},
            config={"training": {"batch_size": 512, "long": "x" * 9000}, "seed": 0},
            versions={"code": key},
            rows={},
            files={},
        )
    )


def lines(outbox: Outbox) -> list[dict[str, Any]]:
    return [event for path in outbox.waiting() for event in read_lines(path)]


@pytest.fixture
def outbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Outbox:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return open_outbox(tmp_path)


def stored_runs(uri: str) -> list[Any]:
    store = client(uri)
    experiment = store.get_experiment_by_name("recsys")
    return [] if experiment is None else list(store.search_runs([experiment.experiment_id]))


def test_a_run_is_a_file_as_it_ends(outbox):
    with start(outbox) as run:
        run.log(10, loss=0.5, grad_norm=NAN)
        assert outbox.waiting() == []
    told = lines(outbox)
    assert told[0]["params"]["training.batch_size"] == "512"
    assert told[0]["tags"]["data.events"] == "d1"
    assert told[1]["values"] == {"loss": 0.5, "grad_norm": "nan"}
    # Strict JSON: no bare NaN, which other readers refuse.
    for line in run.path.read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)


def test_an_error_ends_a_run_as_failed_and_rises(outbox):
    with pytest.raises(ValueError, match="bad"), start(outbox):
        raise ValueError("bad rows")
    told = lines(outbox)
    assert told[-2]["values"] == {"error": "ValueError: bad rows"}
    assert told[-1]["status"] == "FAILED"


def test_names_are_spelt_as_mlflow_takes_them():
    for name, stored in (
        ("test/cold items/ndcg@10", "test/cold items/ndcg_at_10"),
        ("a//../b", "a/b"),
        ("/", "_"),
        ("café<b>", "caf__b_"),
        ("x" * 300, "x" * 250),
    ):
        assert store_name(name) == stored


def test_a_password_in_the_address_is_refused():
    with pytest.raises(ValueError, match="MLFLOW_TRACKING_PASSWORD"):
        TrackingConfig(uri="http://anna:secret@host:5000")


def test_a_store_that_is_slow_is_given_up_in_time(outbox):
    assert sync_outbox(outbox, CONFIG) == SyncResult()
    with start(outbox) as run:
        run.log(1, loss=0.5)
    found = sync_outbox(outbox, replace(CONFIG, sync_seconds=0.01))
    assert (found.sent, found.waiting) == (0, 1)
    assert "was not done in 0.01 s; `recsys registry send --seconds" in str(found.problem)


@pytest.mark.slow
def test_the_embedded_store_gets_all_of_a_run(outbox, tmp_path):
    with start(outbox) as run:
        for step in range(1, 1502):
            run.log(step, loss=1 / step)
        run.log(1502, loss=NAN, grad_norm=INFINITY)
        run.metrics({"test/blend/cold items/ndcg@10": 0.25})
        run.tags({"note": "caf\u00e9"})
        run.register("shop", tmp_path / "bundles", "v1", "d1")
        run.alias("shop", "challenger", "v1", action="release")
        run.alias("shop", "champion", "v1", action="promote")
    told = run.path.read_text()
    unknown = outbox.new_file("promote")
    unknown.alias("shop", "champion", "v9", action="promote")
    unknown.end("FINISHED")

    first = sync_outbox(outbox, CONFIG)

    assert (first.sent, first.waiting, first.refused) == (1, 0, 1)
    assert "bundle v9 is not in the registry" in str(first.problem)
    (refused,) = outbox.path.glob("*.refused")
    assert "bundle v9 is not in the registry" in read_lines(refused)[-1]["reason"]
    uri = store_uri(CONFIG, outbox)
    (stored,) = stored_runs(uri)
    assert (stored.info.status, stored.info.run_name) == ("FINISHED", "train_two_tower")
    assert stored.data.params["training.batch_size"] == "512"
    assert len(stored.data.params["training.long"]) == 6000
    assert (stored.data.tags["data.events"], stored.data.tags["note"]) == ("d1", "café")
    assert stored.data.metrics["test/blend/cold items/ndcg_at_10"] == 0.25
    store = client(uri)
    history = store.get_metric_history(stored.info.run_id, "loss")
    assert [point.step for point in history] == list(range(1, 1503))
    assert history[3].value == 0.25
    assert str(history[-1].value) == "nan"
    champion = store.get_model_version_by_alias("shop", "champion")
    assert champion.source == f"bundle://{tmp_path}/bundles/bundle-v1"
    assert champion.run_id == stored.info.run_id
    assert list(store.get_registered_model("shop").aliases) == ["champion"]

    # The same lines again, as after a kill before the file was removed: nothing is there twice.
    run.path.write_text(told)
    assert sync_outbox(outbox, CONFIG).problem is None
    assert len(stored_runs(uri)) == 1
    assert len(store.get_metric_history(stored.info.run_id, "loss")) == 1502
    assert len(store.search_model_versions("name = 'shop'")) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*:ResourceWarning")
def test_a_server_that_is_down_for_a_week_gets_every_run_later(outbox, mlflow_address, tmp_path):
    config = replace(CONFIG, uri=NOWHERE)
    for day in range(1, 8):
        with start(outbox, key=f"day {day}") as run:
            run.log(day, loss=1 / day)
            run.register("week", tmp_path, f"v{day}", f"d{day}")
            run.alias("week", "champion", f"v{day}", action="release")
        if day in (1, 7):
            gone = sync_outbox(outbox, config)
            assert (gone.sent, gone.waiting) == (0, day)

    assert sync_outbox(outbox, replace(config, uri=mlflow_address)) == SyncResult(sent=7)
    runs = stored_runs(mlflow_address)
    assert sorted(run.data.metrics["loss"] for run in runs) == [1 / day for day in range(7, 0, -1)]
    assert {run.info.status for run in runs} == {"FINISHED"}
    champion = client(mlflow_address).get_model_version_by_alias("week", "champion")
    assert champion.source == f"bundle://{tmp_path}/bundle-v7"
    assert outbox.waiting() == []


NO_NETWORK = """
import socket, sys, time
def refuse(*arguments, **_): print("NETWORK", arguments); sys.stdout.flush()
for name in ("connect", "connect_ex", "sendto"):
    setattr(socket.socket, name, refuse)
socket.getaddrinfo = socket.create_connection = refuse
from dataclasses import asdict
from pipelines.config.operation import TrackingConfig
from pipelines.tracking.store import send_outbox
folder, config = sys.argv[1], asdict(TrackingConfig())
print([name for name in ('mlflow', 'torch', 'polars') if name in sys.modules])
print(send_outbox({"uri": f"sqlite:///{folder}/mlflow.db", "config": config, "outbox": folder}))
time.sleep(2)
"""


@pytest.mark.slow
def test_sending_to_the_embedded_store_touches_no_network(outbox):
    with start(outbox) as run:
        run.log(1, loss=0.5)
    environment = {
        name: value
        for name, value in os.environ.items()
        if "TELEMETRY" not in name and name != "CI"
    }
    child = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", NO_NETWORK, str(outbox.path)],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    assert "'sent': 1" in child.stdout, child.stderr[-2000:]
    assert "NETWORK" not in child.stdout
    assert child.stdout.startswith("[]"), "MLflow is imported before it is needed"
