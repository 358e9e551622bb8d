"""All runs of all places: found without reading events, read anew where they changed."""

import time
from datetime import timedelta
from pathlib import Path

import pytest

from pipelines.dashboard.query import NotFoundError
from pipelines.dashboard.workspaces import stores as scan
from pipelines.dashboard.workspaces.run import Run
from pipelines.dashboard.workspaces.stores import Places, Stores, find_below
from tests.pipelines.dashboard.synthetic_runs import (
    BEGAN,
    METRICS,
    write_bundle,
    write_json,
    write_run,
)


def test_what_cannot_hold_runs_is_not_descended_into(tmp_path):
    run = write_run(tmp_path / "run")
    for hidden in (".cache/run", "events/day=2026-01-01/run", "run/build_features/run"):
        write_run(tmp_path / hidden)
    (tmp_path / "circle").symlink_to(tmp_path, target_is_directory=True)
    write_json(tmp_path / "backtest/backtest.json", {})
    write_run(tmp_path / "backtest/workspace")
    assert [path for path, _ in find_below(tmp_path)] == [run]


def test_increments_and_bundles_below_a_shop_are_runs(tmp_path):
    shop = write_run(tmp_path / "shop")
    write_run(shop / "update", began=BEGAN + timedelta(days=1))
    for version, kind in (("full1", "full"), ("day2", "incremental")):
        write_bundle(shop / "bundles", version)
        kept = {"version": version, "kind": kind, "time": BEGAN.isoformat()}
        write_json(shop / "released" / version / "released.json", kept)
    runs = {run.name: run for run in Stores(Places(roots=[tmp_path])).runs()}
    assert set(runs) == {"shop", "shop/update", "full1", "day2"}
    assert runs["full1"].made_by == runs["shop"].key
    assert runs["day2"].made_by == runs["shop/update"].key
    assert runs["shop/update"].bundles == ("day2",)


def test_a_bundle_says_what_was_decided_and_is_served(tmp_path):
    write_bundle(tmp_path / "b", "v1")
    path = write_bundle(tmp_path / "b", "v2", outcome="refused")
    (tmp_path / "b/current").symlink_to("bundle-v1")
    (tmp_path / "b/bundle-half").mkdir()
    write_bundle(tmp_path / "b", "old", schema_version=2)
    stores = Stores(Places(roots=[], bundles=[tmp_path / "b"]))
    runs = {run.name: run for run in stores.bundles()}
    assert runs["v1"].tags == {"profile": "fast", "decision": "released", "served": "yes"}
    assert runs["v2"].tags["decision"] == "refused"
    assert runs["v2"].path == path
    assert runs["v1"].metrics["test/blend_fast/ndcg@10"] == METRICS["test"]["blend_fast"]["ndcg@10"]
    assert runs["v1"].served == "blend_fast"
    assert runs["half"].status == "unfinished"
    assert runs["old"].status == "unreadable"
    assert "written in schema 2" in runs["old"].problems[0]


def test_only_what_changed_is_read_anew(tmp_path, monkeypatch):
    write_run(tmp_path / "a")
    path = write_run(tmp_path / "b")
    read: list[str] = []
    original = scan.read_workspace

    def counted(path: Path) -> Run:
        read.append(path.name)
        return original(path)

    monkeypatch.setattr(scan, "read_workspace", counted)
    stores = Stores(Places(roots=[tmp_path]))
    before = stores.now()
    assert sorted(read) == ["a", "b"]
    assert stores.now() is before
    changed = {"test": {"blend": {"ndcg@10": 0.5}}}
    write_run(path, changed)
    assert stores.run(before.runs[1].key) is before.by_key[before.runs[1].key]
    assert sorted(read) == ["a", "b", "b"]
    (found,) = [run for run in stores.runs() if run.name == "b"]
    assert found.metrics == {"test/blend/ndcg@10": 0.5}


def test_a_watching_store_replies_with_what_is_there_while_it_reads(tmp_path, monkeypatch):
    for number in range(5):
        (tmp_path / f"run-{number}").mkdir()
        write_json(tmp_path / f"run-{number}/evaluate/metrics.json", {})
    resume = []

    def slow(path: Path) -> Run:
        while path.name > "run-1" and not resume:
            time.sleep(0.01)
        return Run(
            key=path.name, name=path.name, kind="workspace", status="complete", time=None, path=path
        )

    monkeypatch.setattr(scan, "read_workspace", slow)
    monkeypatch.setattr(scan, "SHOWN_AFTER", 0.0)
    monkeypatch.setattr(scan, "find_below", lambda root: sorted(find_below(root)))
    stores = Stores(Places(roots=[tmp_path]), watch=True, every=0.01)
    try:
        shown = stores.now()
        assert [run.name for run in shown.runs] == ["run-1", "run-0"]
        assert shown.problems == ("2 of about 5 runs read; the rest follows",)
        with pytest.raises(NotFoundError, match="not there, or not yet: 2 of about 5"):
            stores.run("run-4")
    finally:
        resume.append(True)
    deadline = time.monotonic() + 30
    while len(stores.runs()) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(stores.runs()) == 5
    assert stores.problems() == ()


def test_one_run_that_cannot_be_read_hides_no_other(tmp_path):
    write_run(tmp_path / "good")
    path = write_run(tmp_path / "bad")
    (path / "train_two_tower/run.json").write_text('{"seconds": 1, "started": 12}')
    (path / "evaluate/manifest.json").write_text('{"stage": []}')
    (path / "lock").write_bytes(b"\xff\xfe")
    (path / "evaluate/metrics.json").unlink()
    runs = {run.name: run for run in Stores(Places(roots=[tmp_path])).runs()}
    assert runs["good"].status == "complete"
    assert runs["bad"].status in ("unfinished", "unreadable")
    assert runs["bad"].problems


def test_a_look_that_fails_is_said_and_the_next_one_is_made(tmp_path, monkeypatch):
    stores = Stores(Places(roots=[tmp_path]), watch=True, every=0.0)
    look, looks = stores._look, iter(range(10**9))

    def broken() -> tuple[list[Run], list[str]]:
        if next(looks) == 0:
            raise KeyError("a fault")
        return look()

    monkeypatch.setattr(stores, "_look", broken)
    stores.now()
    write_run(tmp_path / "shop", width=32)
    deadline = time.monotonic() + 30
    while not stores.runs():
        assert time.monotonic() < deadline, stores.problems()
        time.sleep(0.01)
