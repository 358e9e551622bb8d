"""The ranker as a stage: judged by halves, measured beside the blend, resumed, absent where off."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import Result

from pipelines.rankers import FILE

Recsys = Callable[..., Result]
BEFORE = (
    "build_features",
    "enrich_items",
    "embed_items",
    "build_semantic_ids",
    "fit_baselines",
    "train_two_tower",
    "train_sequence",
    "train_generative",
    "fit_blend",
)
SETTINGS = (
    "ranker_training.enabled=true",
    "ranker_training.min_found=10",
    "ranker_training.num_candidates=15",
    "ranker_training.num_hard=5",
    "ranker_training.num_random=5",
    "ranker_training.batch_size=16",
    "ranker_training.max_epochs=3",
    "ranker_training.device=cpu",
    "ranker.embedding_dim=8",
    "ranker.num_experts=2",
    "ranker.hidden_dim=8",
    "ranker.head_dim=8",
    "ranker.tile_rows=32",
    "ranker.backend=torch",
)


def until_blend(shop: Path, folder: Path) -> Path:
    """Copy what the stage reads; return the workspace."""
    workspace = folder / "run"
    for name in BEFORE:
        shutil.copytree(shop / name, workspace / name)
    return workspace


def run(
    recsys: Recsys,
    shop: Path,
    workspace: Path,
    stages: Sequence[str],
    settings: Sequence[str] = SETTINGS,
) -> Result:
    options = [part for one in settings for part in ("--set", one)]
    options += [part for name in stages for part in ("--stage", name)]
    return recsys("run", "-c", shop.parent / "shop.toml", "-w", workspace, "-q", *options)


@pytest.fixture(scope="module")
def ranked(shop: Path, recsys: Recsys, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a ranker, measured."""
    workspace = until_blend(shop, tmp_path_factory.mktemp("ranked"))
    result = run(recsys, shop, workspace, ("train_ranker", "evaluate"))
    assert result.exit_code == 0, result.output
    return workspace


def test_evaluation_finds_what_the_stage_judged_by(ranked: Path) -> None:
    told = json.loads((ranked / "train_ranker/given" / FILE).read_text())
    metrics = json.loads((ranked / "evaluate/metrics.json").read_text())["given"]
    assert metrics["validation"]["ranked"]["ndcg@10"] == pytest.approx(
        told["validation"]["ranked"], abs=1e-6
    )
    assert metrics["validation"]["blend_fast"]["ndcg@10"] == pytest.approx(
        told["validation"]["blend"], abs=1e-6
    )
    assert metrics["test"]["ranked"]["recall@10"] > 0
    assert told["served"] == (told["ahead"] >= -2 * told["standard_error"])


def test_events_without_values_give_one_task_and_say_so(ranked: Path) -> None:
    told = json.loads((ranked / "train_ranker/given" / FILE).read_text())
    assert told["tasks"] == ["next"]
    assert "no values" in told["tasks_because"]
    calibration = json.loads((ranked / "train_ranker/given/ranker/calibration.json").read_text())
    found = calibration["tasks"]["next"]
    assert found["predicted"] == pytest.approx(found["observed"], abs=0.02)
