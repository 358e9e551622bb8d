"""Runs of workspaces: what is read of one that is whole, half written, damaged, or old."""

import json
from datetime import UTC, datetime
from pathlib import Path

from pipelines.dashboard.workspaces.read import read_workspace
from serving.recommend import Recommender
from tests.pipelines.dashboard.synthetic_runs import METRICS, write_json, write_run, write_stage


def test_a_complete_run_says_what_it_measured_and_cost(tmp_path: Path) -> None:
    run = read_workspace(write_run(tmp_path / "night", seconds=20.0))
    assert (run.name, run.kind, run.status, run.problems) == ("night", "workspace", "complete", ())
    assert run.metrics["test/blend_fast/ndcg@10"] == 0.12
    assert len(run.metrics) == 12
    assert run.config["two_tower.embedding_dim"] == "64"
    assert (run.dataset, run.served) == ("movielens-100k", "blend_fast")
    assert (run.seconds, run.peak_memory) == (60.0, 1 << 30)
    assert run.time == datetime(2026, 11, 1, 12, 1, tzinfo=UTC)


def test_the_released_order_of_tied_times_is_read(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    shuffled = {"test": {"blend": {"ndcg@10": 0.9}}}
    write_json(path / "evaluate/metrics.json", {"a": shuffled, "given": METRICS})
    run = read_workspace(path)
    assert run.metrics["test/blend/ndcg@10"] == 0.13
    assert run.tags["tie order"] == "given"


def test_a_run_that_was_killed_is_unfinished_and_says_what_is_missing(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    (path / "evaluate/metrics.json").unlink()
    (path / "evaluate").rename(path / ".partial-evaluate")
    run = read_workspace(path)
    assert run.status == "unfinished"
    assert run.problems == (
        f"not evaluated: 2 stages made. Go on with: recsys run {path / 'config.toml'}",
    )
    assert run.dataset == "movielens-100k"


def test_a_damaged_file_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    text = json.dumps({"given": METRICS})
    (path / "evaluate/metrics.json").write_text(text[: len(text) // 2], encoding="utf-8")
    run = read_workspace(path)
    assert (run.status, dict(run.metrics)) == ("unreadable", {})
    assert run.problems[0].startswith("evaluate/metrics.json is no JSON")
    assert run.seconds == 30.0


def test_a_run_of_an_older_format_says_so_and_keeps_its_metrics(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    write_stage(path / "evaluate", format=1)
    run = read_workspace(path)
    assert run.status == "unreadable"
    assert run.metrics["test/blend/ndcg@10"] == 0.13
    assert "written in format 1, not 2" in run.problems[0]


def test_a_real_workspace_has_the_digests_of_its_release(workspace: Path) -> None:
    run = read_workspace(workspace)
    released = json.loads((workspace / "bundles/current/manifest.json").read_text())
    assert run.status == "complete"
    assert run.problems == ()
    assert run.config_digest == released["config_digest"]
    has_ranker = Recommender.load(workspace / "bundles/current").bundle.ranker is not None
    assert run.served == ("ranked" if has_ranker else "blend_fast")
    assert len(run.bundles) == 2
    assert run.bundles[0] == released["version"]
    own = released["metrics"][run.served]["ndcg@10"]
    assert run.metrics[f"test/{run.served}/ndcg@10"] == own


def test_the_digest_of_unreleased_settings_is_what_a_release_would_have(
    workspace: Path, tmp_path: Path
) -> None:
    path = write_run(tmp_path / "run", settings=(workspace / "config.toml").read_text())
    assert read_workspace(path).config_digest == read_workspace(workspace).config_digest
