"""The sequence model as a stage of a run: measured, resumable, and absent where it is off."""

import json
from pathlib import Path

import pytest

from pipelines.stages.report import report_path
from recsys.training.checkpoint import save_checkpoint
from serving.recommend import Recommender
from serving.schemas import Request
from serving.settings import ServingOptions
from tests.integration.copies import Recsys, copied, options, run, run_well, stages_before

WITHOUT_SEQUENCE = [*stages_before("train_sequence"), "build_semantic_ids"]


def test_the_successor_is_found_on_both_splits_and_shown(shop: Path, recsys: Recsys) -> None:
    metrics = json.loads((shop / "evaluate/metrics.json").read_text())["given"]
    for split in ("validation", "test"):
        assert metrics[split]["sequence"]["recall@5"] >= 0.95
    ending = json.loads((shop / "train_sequence/given/training.json").read_text())
    assert ending["best_metric"] == metrics["validation"]["sequence"]["ndcg@10"]
    numbers = json.loads((report_path(shop).parent / "report.json").read_text())
    assert "sequence" in numbers["models"]
    assert {curve["model"] for curve in numbers["curves"]} >= {"two_tower", "sequence"}
    assert "sequence model" in report_path(shop).read_text()
    compared = recsys("compare", shop, "--models", "popularity,sequence")
    assert compared.exit_code == 0, compared.output
    assert "run:sequence" in compared.output


def test_what_is_served_holds_it_fitted_on_everything(shop: Path) -> None:
    manifest = json.loads((shop / "bundles/current/manifest.json").read_text())
    assert "sequence" in manifest["models"]
    name = "sequence.safetensors"
    released = (shop / "bundles/current/sequence" / name).read_bytes()
    assert released == (shop / "refit/sequence" / name).read_bytes()
    assert released != (shop / "train_sequence/given/sequence" / name).read_bytes()
    best = json.loads((shop / "train_sequence/given/training.json").read_text())["best_step"]
    again = json.loads((shop / "refit/trainings/sequence/training.json").read_text())
    # One window a user before and after, so one pass is as many steps.
    assert again["num_steps"] == best


def test_where_it_is_off_nothing_is_trained_or_measured(
    shop: Path, recsys: Recsys, tmp_path: Path
) -> None:
    workspace = copied(shop, tmp_path, WITHOUT_SEQUENCE)
    off = ("sequence_training.enabled=false", "generative_training.enabled=false")
    trained_here = ("train_sequence", "train_generative", "fit_blend", "train_ranker")
    names = (*trained_here, "evaluate", "report", "refit")
    run_well(recsys, workspace, *options("--set", off), *options("--stage", names))
    assert not (workspace / "train_sequence/given").exists()
    metrics = json.loads((workspace / "evaluate/metrics.json").read_text())["given"]["test"]
    models = {"popularity", "item_to_item", "ease", "content_similarity", "two_tower", "blend"}
    assert set(metrics) == models
    assert not (workspace / "refit/sequence").exists()


class Killed(BaseException):
    """Stands in for a SIGKILL in the middle of training."""


def test_killed_training_resumes_to_the_same_bits(
    shop: Path, recsys: Recsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = copied(shop, tmp_path, stages_before("fit_baselines"))
    settings = ("--set", "sequence_training.checkpoint_seconds=0")
    command = (recsys, workspace, "--stage", "train_sequence", *settings)
    seen: list[int] = []

    def dying(*arguments: object, **named: object) -> None:
        save_checkpoint(*arguments, **named)  # type: ignore[arg-type]
        seen.append(arguments[1].step)  # type: ignore[attr-defined]
        if len(seen) == 7:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("recsys.training.loop.save_checkpoint", dying)
        with pytest.raises(Killed):
            run(*command)
        assert not (workspace / "train_sequence/manifest.json").exists()
        assert run(*command).exit_code == 0
    assert seen[6:8] == [7, 8]  # went on where it was
    for name in ("sequence/sequence.safetensors", "curve.jsonl", "training.json"):
        place = Path("train_sequence/given") / name
        assert (workspace / place).read_bytes() == (shop / place).read_bytes()


def test_further_members_are_trained_apart_and_serve_profile_full(
    shop: Path, recsys: Recsys, tmp_path: Path
) -> None:
    workspace = copied(shop, tmp_path, WITHOUT_SEQUENCE)
    settings = ["sequence.num_members=2", "sequence.trained_apart=true", "sequence.fast_members=1"]
    settings += ['sequence.member_blocks=["attention", "hstu"]', "sequence_training.max_epochs=4"]
    settings += ["generative_training.enabled=false"]
    run_well(recsys, workspace, *options("--set", settings))
    made = workspace / "train_sequence/given"
    saved = {
        name: json.loads((made / name / "config.json").read_text())["config"]
        for name in ("sequence", "ensemble")
    }
    assert [saved[name]["num_members"] for name in saved] == [1, 2]
    assert saved["ensemble"]["member_blocks"] == ["attention", "hstu"]
    lines = [json.loads(line) for line in (made / "curve.jsonl").read_text().splitlines()]
    steps = json.loads((made / "training.json").read_text())["num_steps"]
    for loss in ("loss", "member 2/loss"):
        assert [line["step"] for line in lines if loss in line][-1] == steps
    metrics = json.loads((workspace / "evaluate/metrics.json").read_text())["given"]["test"]
    assert {"sequence", "ensemble", "blend_fast", "blend"} <= set(metrics)
    bundle = workspace / "bundles/current"
    for profile, expected in (("fast", False), ("full", True)):
        recommender = Recommender.load(bundle, ServingOptions(profile=profile))
        assert recommender.bundle.sequence.config.num_members == 1
        reply = recommender.answer(Request(user_id="user-2", k=20, explain=True))
        assert reply.served_by.profile == profile
        told = {name for item in reply.items for name in item.contributions}
        assert ("ensemble" in told) == expected
