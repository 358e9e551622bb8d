from pathlib import Path

from pipelines.engine.artifacts import Manifest, begin, commit
from pipelines.tracking.outbox import Recorder, open_outbox, read_lines
from pipelines.training.train import Curve


def planned(stage: str) -> Manifest:
    return Manifest(
        stage=stage,
        inputs={"build_features": "d1"},
        config={"training": {"batch_size": 64}},
        versions={"code": "c1"},
        rows={"in": 5, "out": 4},
        files={},
    )


def make(final: Path, stage: str, files: dict[str, str]) -> None:
    partial = begin(final)
    for name, text in files.items():
        path = partial / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    commit(partial, final, manifest=planned(stage), run={"seconds": 1.5, "host": "here"})


def told(workspace: Path, stage: str, files: dict[str, str]) -> list[dict[str, object]]:
    """Record a stage that makes these files; return what the outbox holds."""
    outbox = open_outbox(workspace)
    recorder = Recorder(outbox=outbox, bundles=workspace / "bundles", model="shop")
    with recorder.recording(planned(stage), workspace / stage):
        make(workspace / stage, stage, files)
    (path,) = outbox.waiting()
    return read_lines(path)


def metrics(events: list[dict[str, object]]) -> dict[object, object]:
    found: dict[object, object] = {}
    for event in events:
        if event["event"] == "metrics":
            values = event["values"]
            assert isinstance(values, dict)
            found |= {(name, event["step"]): value for name, value in values.items()}
    return found


def test_training_tells_how_it_ended_and_its_inputs(tmp_path):
    events = told(
        tmp_path,
        "train_two_tower",
        {
            "given/curve.jsonl": '{"step": 10, "loss": 0.5}\n',
            "given/training.json": '{"best_step": 10, "stopped_early": true, "best_metric": null}',
            "training.json": '{"num_steps": 20}',
        },
    )
    found = metrics(events)
    assert found["given/best_step", 0] == 10.0
    assert found["num_steps", 0] == 20.0
    assert found["rows/out", 0] == 4.0
    assert found["run/seconds", 0] == 1.5
    assert events[0]["params"] == {"training.batch_size": "64"}
    assert events[-1]["status"] == "FINISHED"
    (tags,) = [event["values"] for event in events if event["event"] == "tags"]
    assert tags == {"artefact": str(tmp_path / "train_two_tower")}


def test_a_curve_is_sent_with_its_steps(tmp_path):
    outbox = open_outbox(tmp_path)
    with Recorder(outbox=outbox).recording(planned("train_two_tower"), tmp_path / "done") as run:
        curve = Curve(run, "given")
        curve.log(10, loss=0.5)
        curve.log(20, loss=float("nan"))
        make(tmp_path / "done", "train_two_tower", {})
    found = metrics(read_lines(outbox.waiting()[0]))
    assert (found["given/loss", 10], found["given/loss", 20]) == (0.5, "nan")
    assert [row["step"] for row in curve.rows] == [10, 20]
