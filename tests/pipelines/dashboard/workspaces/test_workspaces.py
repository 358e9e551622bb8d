"""Runs of workspaces: what is read of one that is whole, half written, damaged, or old."""

import json
from datetime import UTC, datetime

from pipelines.dashboard.workspaces.read import read_workspace
from pipelines.dashboard.workspaces.stores import Places, Stores
from serving.bundle.manifest import read_manifest
from tests.pipelines.dashboard.synthetic_runs import METRICS, write_run, write_stage


def test_a_complete_run_says_what_it_measured_and_cost(tmp_path):
    run = read_workspace(write_run(tmp_path / "night", seconds=20.0))
    assert (run.name, run.kind, run.status, run.problems) == ("night", "workspace", "complete", ())
    assert run.metrics["test/blend_fast/ndcg@10"] == 0.12
    assert len(run.metrics) == 12
    assert run.config["two_tower.embedding_dim"] == "64"
    assert (run.dataset, run.served) == ("movielens-100k", "blend_fast")
    assert (run.seconds, run.peak_memory) == (60.0, 1 << 30)
    assert run.time == datetime(2026, 11, 1, 12, 1, tzinfo=UTC)


def test_a_run_that_was_killed_is_unfinished_and_says_what_is_missing(tmp_path):
    path = write_run(tmp_path / "run")
    (path / "evaluate/metrics.json").unlink()
    (path / "evaluate").rename(path / ".partial-evaluate")
    run = read_workspace(path)
    assert run.status == "unfinished"
    assert run.problems == (
        f"not evaluated: 2 stages made. Go on with: recsys run {path / 'config.toml'}",
    )
    assert run.dataset == "movielens-100k"


def test_a_damaged_file_and_an_older_format_are_named_and_the_rest_is_read(tmp_path):
    path = write_run(tmp_path / "run")
    write_stage(path / "evaluate", format=1)
    run = read_workspace(path)
    assert run.status == "unreadable"
    assert run.metrics["test/blend/ndcg@10"] == 0.13
    assert "written in format 1, not 2" in run.problems[0]
    text = json.dumps({"given": METRICS})
    (path / "evaluate/metrics.json").write_text(text[: len(text) // 2], encoding="utf-8")
    run = read_workspace(path)
    assert (run.status, dict(run.metrics)) == ("unreadable", {})
    assert any(one.startswith("evaluate/metrics.json is no JSON") for one in run.problems)
    assert run.seconds == 30.0


def test_a_real_workspace_and_its_bundles_have_the_digests_of_their_release(workspace, tmp_path):
    run, released = read_workspace(workspace), read_manifest(workspace / "bundles/current")[0]
    assert (run.status, run.problems) == ("complete", ())
    assert (run.config_digest, run.bundles[0]) == (released.config_digest, released.version)
    own = released.metrics[run.served]["ndcg@10"]
    assert run.metrics[f"test/{run.served}/ndcg@10"] == own
    # Settings that were not released have the digest that a release would have.
    path = write_run(tmp_path / "run", settings=(workspace / "config.toml").read_text())
    assert read_workspace(path).config_digest == run.config_digest

    served, before = Stores(Places(roots=[workspace])).bundles()
    assert [served.name, before.name] == list(run.bundles)
    assert served.made_by == before.made_by == run.key
    assert served.tags["served"] == "yes"
    assert served.config_digest == run.config_digest != before.config_digest
    assert served.config["two_tower.embedding_dim"] == "24"
    assert before.config["two_tower.embedding_dim"] == "16"
    assert served.data_digest == run.data_digest
    assert served.seconds is not None
