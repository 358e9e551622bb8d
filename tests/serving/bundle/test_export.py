"""Exported models say what the bundle's say, without torch; what was altered is refused."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from pipelines.cli.main import app
from recsys.data.batch import JaggedBatch, one_example
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.ranker.config import RankerConfig, RankerInputs
from recsys.models.ranker.model import Ranker
from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.encoder import Calendar
from recsys.models.sequence.model import SequenceModel
from recsys.retrieval.export_onnx import export_bundle, export_model
from serving.bundle.load import Bundle, load_bundle
from tests.serving.synthetic_bundle import SyntheticSize, write_synthetic_bundle

onnxruntime = pytest.importorskip("onnxruntime")
EXAMPLE = Path(__file__).parents[3] / "examples" / "onnx_lists.py"
HISTORY, TIMES, TYPES = (
    ["item-2", "nothing", "item-4"],
    [1700000000, 5, 1700000900],
    ["view", "", "cart"],
)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    size = SyntheticSize(
        history_models=True, ranker=True, event_types=("cart", "view"), events_per_user=15
    )
    return load_bundle(write_synthetic_bundle(tmp_path_factory.mktemp("bundle"), "v1", size))


@pytest.fixture(scope="module")
def exported(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "exported"
    command = ["export", str(bundle.directory), "--format", "onnx", "--out", str(folder)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert json.loads((folder / "export.json").read_text())["bundle"]["digest"] == bundle.digest
    return folder


def test_lists_are_those_of_the_models_without_torch(bundle: Bundle, exported: Path) -> None:
    def listed(model: str, **inputs: object) -> list[str]:
        program = f"import runpy, sys; sys.modules['torch'] = sys.modules['recsys'] = None; \
            runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')"
        command = [exported, model, *HISTORY, "--inputs", json.dumps(inputs)]
        done = subprocess.run(
            [sys.executable, "-c", program, *command], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return [line.split()[0] for line in done.stdout.splitlines()]

    assert bundle.sequence is not None
    values = {"": [2, 4], ".times": [TIMES[0], TIMES[2]], ".types": [2, 1]}
    batch = {f"history{name}": one_example(torch.tensor(one)) for name, one in values.items()}
    scores = bundle.sequence.score(JaggedBatch(batch))[0]
    scores[[2, 4]] = -torch.inf
    best = [f"item-{row}" for row in scores.topk(10).indices.tolist()]
    assert listed("sequence", times=TIMES, types=TYPES) == best
    assert len(listed("two_tower", types=TYPES)) == 10


def test_the_ranker_scores_candidates_as_the_bundle_does(bundle: Bundle, exported: Path) -> None:
    from examples.onnx_lists import ExportedModels

    models, ranker = ExportedModels(exported), bundle.ranker.model
    dense = np.random.default_rng(1).normal(size=(7, len(ranker.inputs.candidate_dense)))
    rows = dict.fromkeys(models.models["ranker"]["features"], 1)
    for history in ([], [2, 4], [5, *range(1, 40)] * 2):
        reader = ranker.reader_of_one(torch.tensor(history, dtype=torch.int64), rows)
        features = torch.from_numpy(dense).float()
        expected = ranker.score_candidates(reader, torch.arange(7), features)
        candidates = ["unknown", *(f"item-{row}" for row in range(1, 7))]
        found = models.rank([f"item-{row}" for row in history], candidates, dense, rows)
        np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)
    with pytest.raises(ValueError, match=r"shape \(2, \d+\), got \(7, "):
        models.rank([], ["item-1", "item-2"], dense)
    with pytest.raises(ValueError, match="must be finite"):
        models.rank([], candidates, dense * np.nan)


@pytest.mark.parametrize("trunk", ["sparse", "dense"])
def test_a_ranker_of_each_kind_agrees(trunk: str, tmp_path: Path) -> None:
    torch.manual_seed(2)
    names = ("blend.score", "lead")
    inputs = RankerInputs(num_item_rows=20, candidate_dense=names, base_feature=names[0])
    config = RankerConfig(embedding_dim=8, trunk=trunk, max_history=6)
    model = Ranker(config, inputs, ItemCatalogue.empty(20))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    model.calibrator.fitted.fill_(True)
    model = model.eval()
    assert export_model(model, tmp_path / "ranker.onnx")["candidate_features"] == list(names)
    session = onnxruntime.InferenceSession(tmp_path / "ranker.onnx")
    dense = torch.randn(9, 2)
    for length in (0, 1, 6):
        history = torch.arange(length) + 3
        feed = {
            "item_rows": np.pad(history.numpy(), (0, 6 - length)),
            "count": np.array([length]),
            "candidates": np.arange(9),
            "candidate_features": dense.numpy(),
        }
        reader = model.reader_of_one(history, {})
        expected = model.score_candidates(reader, torch.arange(9), dense).numpy()
        np.testing.assert_allclose(session.run(None, feed)[0], expected, rtol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"block": "convolution", "num_blocks": 2},
        {"num_members": 2, "embedding_dim": 16, "calendar_days": 30.0, "time_buckets": 20},
        {"num_heads": 2, "num_blocks": 3},
    ],
)
def test_encoders_of_each_kind_agree_at_every_length(settings, tmp_path: Path) -> None:
    torch.manual_seed(1)
    config = SequenceConfig(
        **{"embedding_dim": 8, "hidden_dim": 16, "max_length": 20, "backend": "torch"} | settings
    )
    sizes = FeatureSizes(num_item_rows=30)
    counts = torch.ones(30, dtype=torch.int64)
    model = SequenceModel(config, sizes, ItemCatalogue.empty(30), counts).train()
    # Among the times that pass between events are powers of two and their neighbours.
    gaps = torch.stack([2 ** torch.arange(1, 14) + one for one in (-2, -1, 0)], 1).flatten()
    times = 1_600_000_000 + torch.nn.functional.pad(gaps.cumsum(0), (1, 0))
    rows = torch.arange(40) * 7 % 30
    for calendar in model.encoder.modules():
        if isinstance(calendar, Calendar):
            calendar.first, calendar.last = times[3], times[-2]
    for weight in model.encoder.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    model = model.eval()
    inputs = export_model(model, tmp_path / "sequence.onnx")["inputs"]
    session = onnxruntime.InferenceSession(tmp_path / "sequence.onnx")
    for length in (1, 2, 19, 20, 21, 40):
        given = {"item_rows": rows[:length], "times": times[:length]}
        features = zip(("history", "history.times"), given.values(), strict=True)
        batch = JaggedBatch({name: one_example(values) for name, values in features})
        latest = {name: one[-20:].numpy() for name, one in given.items()}
        feed = {name: np.pad(one, (0, 20 - len(one))) for name, one in latest.items()}
        feed["count"] = np.array([min(length, 20)])
        expected = model.query_vectors(batch).numpy()
        found = session.run(None, {name: feed[name] for name in inputs})[0]
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_what_cannot_be_exported_is_refused(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    none = replace(bundle, retriever=None, sequence=None, ranker=None)
    with pytest.raises(ValueError, match="neither a two-tower, nor a sequence model, nor a ranker"):
        export_bundle(none, tmp_path / "missing")
    config = SequenceConfig(embedding_dim=8, block="hstu", backend="torch")
    model = SequenceModel(config, FeatureSizes(num_item_rows=9), ItemCatalogue.empty(9)).eval()
    with pytest.raises(ValueError, match="blocks of kind hstu"):
        export_model(model, tmp_path / "hstu.onnx")
    monkeypatch.setattr("recsys.retrieval.export_onnx.TOLERANCE", 0.0)
    with pytest.raises(ValueError, match="differ from the bundle's by"):
        export_bundle(bundle, tmp_path / "missing")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ValueError, match=r"pip install 'recsys-platform\[onnx\]'"):
        export_bundle(bundle, tmp_path / "missing")
    assert not (tmp_path / "missing").exists()


def test_altered_files_and_unknown_histories_are_refused(exported: Path, tmp_path: Path) -> None:
    from examples.onnx_lists import ExportedModels

    models = ExportedModels(exported)
    with pytest.raises(ValueError, match=r"no encoder 'ease'; there are \['sequence"):
        models.recommend("ease", ["item-1"])
    with pytest.raises(ValueError, match="none of the history's 1 items is known"):
        models.recommend("two_tower", ["nothing"])
    with pytest.raises(ValueError, match="sequence reads times: give one for each of 1"):
        models.recommend("sequence", ["item-1"])
    for name in json.loads((exported / "export.json").read_text())["files"]:
        copied = shutil.copytree(exported, tmp_path / name)
        damaged = copied / name
        damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
        with pytest.raises(ValueError, match=f"{name} was altered; export the bundle again"):
            ExportedModels(copied)
