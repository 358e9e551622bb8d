"""The ranker as a stage: judged on validation, measured beside the blend, resumed, or absent."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from click.testing import Result

from pipelines.ranking.artefact import FILE, served_ranker
from pipelines.ranking.fit import decision
from pipelines.stages.report import report_path
from recsys.fitting.ranker import SHARES, metric_by_query
from recsys.training.checkpoint import save_checkpoint
from serving.recommend import Recommender
from serving.schemas import Request
from tests.integration.copies import Recsys, copied, options, run, stages_before

SETTINGS = (
    "ranker_training.enabled=true",
    "ranker_training.min_found=10",
    "ranker_training.num_candidates=15",
    "ranker_training.num_hard=5",
    "ranker_training.num_random=5",
    "ranker_training.batch_size=16",
    "ranker_training.max_epochs=3",
    "device=cpu",
    "ranker.embedding_dim=8",
    "ranker.trunk=auto",
    "ranker.num_experts=2",
    "ranker.hidden_dim=8",
    "ranker.head_dim=8",
    "ranker.tile_rows=32",
    "ranker.backend=torch",
)


def made(
    recsys: Recsys, workspace: Path, *stages: str, settings: Sequence[str] = SETTINGS
) -> Result:
    """Run some stages."""
    return run(recsys, workspace, *options("--set", settings), *options("--stage", stages))


@pytest.fixture
def blended(shop: Path, tmp_path: Path) -> Path:
    """A workspace with what the stage reads."""
    return copied(shop, tmp_path, stages_before("train_ranker"))


@pytest.fixture(scope="module")
def ranked(shop: Path, recsys: Recsys, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a ranker, measured."""
    folder = tmp_path_factory.mktemp("ranked")
    workspace = copied(shop, folder, stages_before("train_ranker"))
    result = made(recsys, workspace, "train_ranker", "evaluate", "report")
    assert result.exit_code == 0, result.output
    return workspace


def test_evaluation_finds_what_the_stage_judged_by(ranked: Path) -> None:
    told = json.loads((ranked / "train_ranker/given" / FILE).read_text())
    metrics = json.loads((ranked / "evaluate/metrics.json").read_text())["given"]
    # The stage judges each half by what the other one chose.
    assert metrics["validation"]["ranked"]["ndcg@10"] == pytest.approx(
        told["validation"]["ranked"], abs=0.05
    )
    assert told["share"] in SHARES
    assert metrics["validation"]["blend_fast"]["ndcg@10"] == pytest.approx(
        told["validation"]["blend"], abs=1e-6
    )
    assert metrics["test"]["ranked"]["recall@10"] > 0
    assert "blend (fast), ranked" in report_path(ranked).read_text()
    assert told["served"] == (told["ahead"] > 2 * told["standard_error"])
    (experts,) = told["choices"]
    kept = "sparse" if experts["ahead"] > experts["standard_error"] else "dense"
    model = json.loads((ranked / "train_ranker/given/ranker/config.json").read_text())
    assert model["config"]["trunk"] == kept


def test_events_without_values_have_no_likes_and_say_so(ranked: Path) -> None:
    told = json.loads((ranked / "train_ranker/given" / FILE).read_text())
    assert told["tasks"] == ["next", "click", "purchase"]
    assert "no values" in told["tasks_reason"]
    calibration = json.loads((ranked / "train_ranker/given/ranker/calibration.json").read_text())
    found = calibration["tasks"]["next"]
    assert found["predicted"] == pytest.approx(found["observed"], abs=0.02)


@pytest.mark.parametrize("served", [True, False])
def test_what_is_released_is_served_and_named(
    ranked: Path, shop: Path, recsys: Recsys, tmp_path: Path, served: bool
) -> None:
    workspace = copied(ranked, tmp_path)
    for name in ("refit", "build_index"):
        shutil.copytree(shop / name, workspace / name)
    decision = workspace / "train_ranker/given" / FILE
    decision.write_text(json.dumps({**json.loads(decision.read_text()), "served": served}))
    result = made(recsys, workspace, "release")
    assert result.exit_code == 0, result.output
    recommender = Recommender.load(workspace / "bundles/current")
    part = recommender.bundle.ranker
    assert (part is not None) == served
    reply = recommender.answer(Request(user_id=recommender.bundle.users.user_ids[1], k=5))
    assert reply.served_by.ranker == (part.version if part else None)
    assert ("ranked" in recommender.bundle.manifest.metrics) == served
    assert reply.degraded == []


class Killed(BaseException):
    """Stands in for a SIGKILL in the middle of training."""


def test_done_it_is_skipped_and_killed_it_resumes_to_the_same_bits(
    ranked: Path, blended: Path, recsys: Recsys
) -> None:
    weights = Path("train_ranker/given/ranker/ranker.safetensors")
    written = (ranked / weights).stat().st_mtime_ns
    assert made(recsys, ranked, "train_ranker").exit_code == 0
    assert (ranked / weights).stat().st_mtime_ns == written
    settings = (*SETTINGS, "ranker_training.checkpoint_seconds=0")
    steps: list[int] = []

    def dying(*arguments: object, **named: object) -> None:
        save_checkpoint(*arguments, **named)  # type: ignore[arg-type]
        steps.append(arguments[1].step)  # type: ignore[attr-defined]
        if len(steps) == 8:
            raise Killed

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("recsys.training.loop.save_checkpoint", dying)
        with pytest.raises(Killed):
            made(recsys, blended, "train_ranker", settings=settings)
        assert not (blended / "train_ranker/manifest.json").exists()
        assert made(recsys, blended, "train_ranker", settings=settings).exit_code == 0
    # The second ranker went on where it was.
    assert steps[8] == steps[7] + 1 > 1
    assert (blended / weights).read_bytes() == (ranked / weights).read_bytes()


def test_a_ranker_that_loses_is_measured_and_not_served(
    blended: Path, recsys: Recsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Far worse.
    monkeypatch.setattr(
        "recsys.fitting.ranker.metric_by_query",
        lambda *arguments: metric_by_query(*arguments) - 1.0,
    )
    assert made(recsys, blended, "train_ranker").exit_code == 0
    told = json.loads((blended / "train_ranker/given" / FILE).read_text())
    assert told["served"] is False
    assert told["ahead"] < -2 * told["standard_error"]
    assert served_ranker(blended / "train_ranker/given") is None


@pytest.mark.parametrize(
    ("gain", "served"), [(-0.01, False), (0.0, False), (0.005, False), (0.02, True)]
)
def test_only_a_gain_beyond_its_interval_is_served(gain: float, served: bool) -> None:
    """Gains of 400 users are +-0.1 around the mean, which has a standard error of 0.005."""
    blend = torch.full((401,), 0.5, dtype=torch.float64)
    noise = torch.tensor([0.1, -0.1]).double().repeat(200)
    ranker = blend + torch.cat([noise + gain, torch.tensor([torch.nan]).double()])
    told = decision(ranker, blend, "ndcg@10", 2.0)
    assert told["served"] is served
    assert told["ahead"] == pytest.approx(gain)
    assert told["standard_error"] == pytest.approx(0.005, rel=0.01)
    low, high = (f"{gain + sign * 2 * told['standard_error']:+.4f}" for sign in (-1, 1))
    assert f"{low} to {high}, 400 users" in told["reason"]


def test_too_few_users_train_none_and_say_so(blended: Path, recsys: Recsys) -> None:
    settings = (*SETTINGS, "ranker_training.min_found=1000")
    result = made(recsys, blended, "train_ranker", "evaluate", settings=settings)
    assert result.exit_code == 0, result.output
    told = json.loads((blended / "train_ranker/given" / FILE).read_text())
    assert not told["served"]
    assert "min_found = 1000" in told["reason"]
    metrics = json.loads((blended / "evaluate/metrics.json").read_text())["given"]
    assert "ranked" not in metrics["test"]
