import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.cli.tracking import recorder_of
from pipelines.config.run import RunConfig
from pipelines.config.tracking import TrackingConfig
from pipelines.engine.artifacts import Manifest
from pipelines.engine.run_log import RunLog
from pipelines.tracking.outbox import (
    Outbox,
    OutboxRun,
    read_lines,
    store_name,
)
from pipelines.tracking.store.connection import local_path
from pipelines.tracking.tracking import (
    SyncResult,
    outbox_of,
    sending_meanwhile,
    store_uri,
    sync_outbox,
)
from tests.pipelines.tracking.mlflow_server import client, free_port, mlflow_server

CONFIG = TrackingConfig(sync_seconds=120.0, upload_bundles=False)
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
    return [event for path in outbox.waiting() for _, event in read_lines(path)]


@pytest.fixture
def outbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Outbox:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return outbox_of(tmp_path)


def stored_runs(uri: str) -> list[Any]:
    store = client(uri)
    experiment = store.get_experiment_by_name("recsys")
    return [] if experiment is None else list(store.search_runs([experiment.experiment_id]))


def test_stages_side_by_side_leave_each_others_runs_open(outbox: Outbox):
    first = start(outbox, "train_two_tower")
    start(outbox, "train_sequence").log(1, loss=0.5)
    first.log(2, loss=0.25)
    assert [event["event"] for event in lines(outbox)].count("end") == 0
    # A run of the same stage from other inputs has ended: its lock is held by this one.
    start(outbox, "train_sequence", key="other")
    ended = [event["status"] for event in lines(outbox) if event["event"] == "end"]
    assert ended == ["KILLED"]


def test_a_run_is_on_disk_as_soon_as_it_is_told(outbox: Outbox):
    run = start(outbox)
    run.log(10, loss=0.5, grad_norm=NAN)
    told = lines(outbox)
    assert [event["event"] for event in told] == ["start", "metrics"]
    assert told[0]["params"]["training.batch_size"] == "512"
    assert told[0]["tags"]["data.events"] == "d1"
    assert told[1]["values"] == {"loss": 0.5, "grad_norm": "nan"}
    # Strict JSON: no bare NaN, which other readers refuse.
    for path in outbox.waiting():
        for line in path.read_text().splitlines():
            json.loads(line, parse_constant=pytest.fail)


def test_a_killed_run_goes_on_and_tells_no_step_twice(outbox: Outbox):
    first = start(outbox)
    first.log(10, loss=0.5)
    first.log(20, loss=0.4)
    with first.path.open("a") as file:
        file.write('{"event": "metrics", "step": 3')

    again = start(outbox)
    again.log(20, loss=0.4)
    again.log(30, loss=0.3)
    again.end("FINISHED")

    assert again.path == first.path
    steps = [event["step"] for event in lines(outbox) if event["event"] == "metrics"]
    assert steps == [10, 20, 30]


def test_a_run_left_behind_is_ended_when_another_begins(outbox: Outbox):
    start(outbox, key="old").log(10, loss=0.5)
    start(outbox, key="new")
    old, new = outbox.waiting()
    assert [event["event"] for _, event in read_lines(old)] == ["start", "metrics", "end"]
    assert [event["event"] for _, event in read_lines(new)] == ["start"]


def test_an_error_ends_a_run_as_failed_and_rises(outbox: Outbox):
    with pytest.raises(ValueError, match="bad"), start(outbox):
        raise ValueError("bad rows")
    told = lines(outbox)
    assert told[-2]["values"] == {"error": "ValueError: bad rows"}
    assert told[-1]["status"] == "FAILED"


def test_an_artefact_is_sent_as_it_was(outbox: Outbox, tmp_path: Path):
    report = tmp_path / "report.html"
    report.write_text("first")
    run = start(outbox)
    run.artifact(report)
    report.write_text("second")
    run.artifact(report)
    copies = [outbox.files(run.path) / e["file"] for e in lines(outbox) if e["event"] == "artifact"]
    assert [copy.read_text() for copy in copies] == ["first", "second"]


def test_a_disabled_tracker_has_every_method_of_a_real_one(tmp_path: Path):
    config = RunConfig(workspace=tmp_path, tracking=TrackingConfig(enabled=False))
    recorder = recorder_of(config)
    assert recorder.outbox is None
    public = {name for name in dir(OutboxRun) if not name.startswith("_")} - {"append", "end"}
    assert public <= set(dir(RunLog))
    planned = Manifest(stage="a", inputs={}, config={}, versions={}, rows={}, files={})
    with recorder.recording(planned, tmp_path / "a") as run:
        run.log(1, loss=NAN)
        run.alias("m", "champion", "1", action="promote")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("ndcg@10", "ndcg_at_10"),
        ("test/cold items/ndcg@10", "test/cold items/ndcg_at_10"),
        ("a//../b", "a/b"),
        ("/", "_"),
        ("café<b>", "caf__b_"),
        ("x" * 300, "x" * 250),
    ],
)
def test_names_are_spelt_as_mlflow_takes_them(name: str, stored: str):
    assert store_name(name) == stored


@pytest.mark.parametrize("name", ["plain", "my runs", "50%", "a#b?c", "größe"])
def test_a_folder_is_found_by_its_address_whatever_its_name(tmp_path: Path, name: str):
    folder = tmp_path / name
    assert local_path(folder.as_uri()) == folder
    assert local_path(str(folder)) == folder


def test_a_password_in_the_address_is_refused():
    with pytest.raises(ValueError, match="MLFLOW_TRACKING_PASSWORD"):
        TrackingConfig(uri="http://anna:secret@host:5000")


def test_nothing_to_send_starts_no_process(outbox: Outbox):
    begin = time.monotonic()
    assert sync_outbox(outbox, CONFIG) == SyncResult()
    assert time.monotonic() - begin < 0.5


def test_a_server_that_is_gone_costs_no_time_and_nothing_is_lost(outbox: Outbox):
    with start(outbox) as run:
        run.log(1, loss=0.5)
    config = replace(CONFIG, uri=f"http://127.0.0.1:{free_port()}")
    begin = time.monotonic()
    result = sync_outbox(outbox, config)
    assert time.monotonic() - begin < 20
    assert (result.sent, result.waiting) == (0, 3)
    assert "no answer" in (result.problem or "")


@contextmanager
def silent_server() -> Iterator[str]:
    """A socket that takes connections, reads nothing and answers nothing."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_server_that_takes_connections_and_never_answers_is_given_up(outbox: Outbox):
    with start(outbox) as run:
        run.log(1, loss=0.5)
    with silent_server() as uri:
        config = replace(CONFIG, uri=uri, request_seconds=1)
        begin = time.monotonic()
        result = sync_outbox(outbox, config)
        assert time.monotonic() - begin < 10
    assert (result.sent, result.waiting) == (0, 3)
    assert result.problem == f"no answer from {uri}"


def test_work_does_not_wait_for_a_server_that_never_answers(outbox: Outbox):
    """The server keeps the first child for half a minute; the work and its end take no notice."""
    run = start(outbox)
    with silent_server() as uri:
        config = replace(CONFIG, uri=uri, request_seconds=30, live_seconds=0.05)
        begin = time.monotonic()
        with sending_meanwhile(outbox, config):
            for step in range(1, 11):
                run.log(step, loss=1 / step)
                time.sleep(0.05)
        assert time.monotonic() - begin < 5
    assert outbox.num_waiting() == 11


@pytest.mark.slow
def test_the_first_lines_of_a_run_are_sent_while_it_goes_on(outbox: Outbox):
    run = start(outbox)
    run.log(1, loss=0.5)
    config = replace(CONFIG, live_seconds=0.1)
    begin = time.monotonic()
    with sending_meanwhile(outbox, config):
        while outbox.num_waiting() and time.monotonic() - begin < 60:
            time.sleep(0.1)
    assert [event["event"] for event in lines(outbox)] == ["start", "metrics"]
    (stored,) = stored_runs(store_uri(config, outbox))
    assert stored.info.status == "RUNNING"
    assert stored.data.metrics == {"loss": 0.5}


@pytest.mark.slow
def test_a_server_that_is_slow_is_given_up_in_time(outbox: Outbox):
    with start(outbox) as run:
        run.log(1, loss=0.5)
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        stop = threading.Event()

        def dribble() -> None:
            # Healthy, then a byte at a time for ever: no single read times out.
            while not stop.is_set():
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=drip, args=(connection,), daemon=True).start()

        def drip(connection: socket.socket) -> None:
            with connection:
                if b"/health" in connection.recv(4096):
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK")
                    return
                try:
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                    while not stop.wait(0.2):
                        connection.sendall(b" ")
                except OSError:
                    return

        threading.Thread(target=dribble, daemon=True).start()
        config = TrackingConfig(
            uri=f"http://127.0.0.1:{server.getsockname()[1]}", sync_seconds=4, request_seconds=2
        )
        begin = time.monotonic()
        result = sync_outbox(outbox, config)
        seconds = time.monotonic() - begin
        stop.set()
    assert seconds < 12
    assert result.waiting == 3
    assert result.problem is not None


@pytest.mark.slow
def test_the_embedded_store_gets_all_of_a_run(outbox: Outbox, tmp_path: Path):
    bundle = tmp_path / "bundles" / "bundle-v1"
    bundle.mkdir(parents=True)
    report = tmp_path / "report.html"
    report.write_text("<html>")
    with start(outbox) as run:
        for step in range(1, 1502):
            run.log(step, loss=1 / step)
        run.log(1502, loss=NAN, grad_norm=INFINITY)
        run.metrics({"test/blend/cold items/ndcg@10": 0.25})
        run.artifact(report, "reports")
        run.tags({"note": "caf\u00e9"})
        run.register("shop", bundle, version="v1", digest="d1", tags={"ndcg@10": "0.25"})
        run.alias("shop", "champion", "v1", action="release")
        run.alias("shop", "challenger", "v9", action="release")
        run.alias("shop", "challenger", "v1", action="release")
        run.alias("shop", "challenger", None, action="promote")
        run.alias("shop", "challenger", None, action="promote")

    first = sync_outbox(outbox, CONFIG)

    assert first.problem is None
    assert (first.waiting, first.refused) == (0, 1)
    uri = store_uri(CONFIG, outbox)
    (stored,) = stored_runs(uri)
    assert stored.info.status == "FINISHED"
    assert stored.info.run_name == "train_two_tower"
    assert stored.data.params["training.batch_size"] == "512"
    assert len(stored.data.params["training.long"]) == 6000
    assert stored.data.tags["data.events"] == "d1"
    assert stored.data.tags["note"] == "café"
    assert stored.data.metrics["test/blend/cold items/ndcg_at_10"] == 0.25
    store = client(uri)
    history = store.get_metric_history(stored.info.run_id, "loss")
    assert [point.step for point in history] == list(range(1, 1503))
    assert history[3].value == 0.25
    assert str(history[-1].value) == "nan"
    assert [one.path for one in store.list_artifacts(stored.info.run_id, "reports")] == [
        "reports/report.html"
    ]
    champion = store.get_model_version_by_alias("shop", "champion")
    assert champion.source == bundle.as_uri()
    assert champion.run_id == stored.info.run_id
    assert champion.tags["bundle"] == "v1"
    assert list(store.get_registered_model("shop").aliases) == ["champion"]
    refused = (outbox.path / "refused.jsonl").read_text()
    assert "bundle v9 is not in the registry" in refused
    assert sync_outbox(outbox, CONFIG) == SyncResult()

    # The same lines again, as after a kill before the state was written: nothing is there twice.
    (sent,) = (outbox.path / "sent").glob("*.jsonl")
    sent.rename(outbox.path / sent.name)
    outbox.files(outbox.path / sent.name).mkdir(parents=True)
    assert sync_outbox(outbox, CONFIG).problem is None
    assert len(stored_runs(uri)) == 1
    assert len(store.get_metric_history(stored.info.run_id, "loss")) == 1502
    assert len(store.search_model_versions("name = 'shop'")) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*:ResourceWarning")
def test_a_server_killed_in_the_middle_of_a_run_gets_the_rest_later(outbox: Outbox, tmp_path: Path):
    port = free_port()
    config = replace(CONFIG, uri=f"http://127.0.0.1:{port}")
    bundle = tmp_path / "bundle-v1"
    bundle.mkdir()
    run = start(outbox)
    with mlflow_server(tmp_path, port):
        run.log(1, loss=1.0)
        begun = sync_outbox(outbox, config)
        assert (begun.sent, begun.waiting, begun.problem) == (2, 0, None)
        assert [one.info.status for one in stored_runs(str(config.uri))] == ["RUNNING"]

    run.log(2, loss=0.5)
    run.register("shop", bundle, version="v1", digest="d1", tags={})
    run.alias("shop", "champion", "v1", action="release")
    run.end("FINISHED")
    gone = sync_outbox(outbox, config)
    assert (gone.sent, gone.waiting) == (0, 4)

    with mlflow_server(tmp_path, port):
        later = sync_outbox(outbox, config)
        assert (later.sent, later.waiting, later.problem) == (4, 0, None)
        (stored,) = stored_runs(str(config.uri))
        assert stored.info.status == "FINISHED"
        store = client(str(config.uri))
        history = store.get_metric_history(stored.info.run_id, "loss")
        assert [(point.step, point.value) for point in history] == [(1, 1.0), (2, 0.5)]
        champion = store.get_model_version_by_alias("shop", "champion")
        assert champion.source == f"bundle://{bundle}"


NO_NETWORK = """
import socket, sys, time
def refuse(*arguments, **_): print("NETWORK", arguments); sys.stdout.flush()
for name in ("connect", "connect_ex", "sendto"):
    setattr(socket.socket, name, refuse)
socket.getaddrinfo = socket.create_connection = refuse
from pathlib import Path
from pipelines.tracking.outbox import Outbox
from pipelines.tracking.store.sender import send_outbox
from pipelines.tracking.tracking import TrackingConfig
print(send_outbox(Outbox(Path(sys.argv[1])), TrackingConfig()))
time.sleep(2)
"""


@pytest.mark.slow
def test_sending_to_the_embedded_store_touches_no_network(outbox: Outbox):
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
    assert "sent=3" in child.stdout, child.stderr[-2000:]
    assert "NETWORK" not in child.stdout


def test_mlflow_is_not_imported_before_it_is_needed():
    code = (
        "import sys, pipelines.tracking.tracking, pipelines.tracking.outbox;"
        "print([name for name in ('mlflow', 'torch', 'polars') if name in sys.modules])"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "[]"
