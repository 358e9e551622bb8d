"""A student of a finished run's models, from the command to a model that is read again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from pipelines.inputs.tensors import read_inputs
from recsys.models.two_tower import TwoTower

Recsys = Callable[..., Result]


@pytest.fixture(scope="module")
def workspace(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the finished run, which other tests read as it is."""
    copied = tmp_path_factory.mktemp("distil") / "run"
    shutil.copytree(shop, copied, symlinks=True)
    return copied


@pytest.mark.parametrize("teacher", ["sequence", "generative"])
def test_a_student_is_written_with_its_metrics_beside_its_teachers(
    recsys: Recsys, workspace: Path, teacher: str
) -> None:
    found = recsys(
        "distil", "-w", workspace, "--teacher", teacher, "--embedding-dim", 8, "--quiet",
        "--set", "training.max_epochs=6",
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    folder = workspace / "students" / teacher
    document = json.loads((folder / "student.json").read_text())
    metrics = document["validation"]
    assert set(metrics) == {teacher, "student", "two_tower"}
    for name, values in metrics.items():
        assert name in found.stdout
        assert f"{values['ndcg@10']:.4f}" in found.stdout
    # The next item of each is certain: half of what the teacher finds is far above chance (.18).
    assert metrics["student"]["recall@10"] > 0.5 * metrics[teacher]["recall@10"]
    assert metrics[teacher]["recall@10"] > 0.4
    inputs = read_inputs(workspace / "build_features", workspace / "embed_items", "given")
    student = TwoTower.load(folder / "two_tower", inputs.catalogue)
    assert student.config.embedding_dim == 8
    assert document["num_parameters"] == sum(one.numel() for one in student.parameters())
    trained = json.loads((workspace / "train_two_tower/given/two_tower/config.json").read_text())
    assert trained["config"]["embedding_dim"] == 16, "the run's own model stays"


def test_an_unknown_teacher_and_an_unfinished_run_are_refused(
    recsys: Recsys, workspace: Path, tmp_path: Path
) -> None:
    found = recsys("distil", "-w", workspace, "--teacher", "popularity")
    assert found.exit_code == 2
    assert "no teacher 'popularity'; there are sequence, ensemble, generative" in found.stderr
    found = recsys("distil", "-w", workspace, "--teacher", "ensemble")
    assert found.exit_code == 2
    assert "has no ensemble model to learn from" in found.stderr
    shutil.copy(workspace / "config.toml", tmp_path / "config.toml")
    found = recsys("distil", "-w", tmp_path)
    assert found.exit_code == 2
    assert "has no complete build_features" in found.stderr
