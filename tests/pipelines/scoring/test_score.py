"""Batch scoring: the API's lists to the last bit, resumed after kills, refused if jobs differ."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from starlette.testclient import TestClient

from pipelines.cli.score import read_ids
from pipelines.engine.artifacts import MANIFEST
from pipelines.scoring.job import ScoreRequest, list_keys, plan, write_manifest
from pipelines.scoring.parts import make_part
from pipelines.scoring.score import check_request, score
from serving.bundle.manifest import publish
from serving.recommend import Recommender
from serving.settings import ServingOptions, Settings
from tests.serving.application import create_app
from tests.serving.synthetic_bundle import SyntheticSize, write_synthetic_bundle

JSON = {"content-type": "application/json"}
SIZE = SyntheticSize(num_items=120, num_users=600, history_models=True, ranker=True)
SURFACES = """[surfaces.mail]
kind = "home"
sources = {ease = 1.0, popularity = 0.1}
k = 8
max_k = 10
exploration = {method = "epsilon", epsilon = 0.5}
"""


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "bundles"
    write_synthetic_bundle(folder, "v1", SIZE)
    publish(folder, "v1")
    return folder


@pytest.fixture(scope="module")
def recommender(bundles: Path) -> Recommender:
    return Recommender.load(bundles / "bundle-v1")


def asked(bundles: Path, out: Path, **fields: object) -> ScoreRequest:
    return ScoreRequest(bundle=str(bundles / "bundle-v1"), out=str(out), **fields)


def lists_in(out: Path) -> pl.DataFrame:
    return pl.read_parquet(out / "lists")


@pytest.mark.parametrize("surface", ["home", "related"])
def test_lists_are_the_apis_to_the_last_bit(bundles, recommender, tmp_path, surface):
    """Random requests: users or items, list length and time."""
    rng = np.random.default_rng(len(surface))
    table = recommender.bundle.users.user_ids
    if surface == "related":
        table = recommender.bundle.catalogue.item_ids
    column = "user_id" if surface == "home" else "query_item_id"
    # A batch waits for the ranker as long as it takes, and so has the server to here.
    patient = Settings(
        bundles=bundles, expose_users=True, ranker_timeout_ms=None, beam_timeout_ms=None
    )
    client = TestClient(create_app(patient))
    times = recommender.bundle.users.times
    for number in range(4):
        keys = [table[row] for row in rng.integers(1, len(table), 12).tolist()]
        keys = list(dict.fromkeys(keys)) + ["nobody"] * (surface == "home")
        out = tmp_path / str(number)
        request = asked(
            bundles,
            out,
            surface=surface,
            k=int(rng.integers(1, 60)),
            unix_time=int(rng.integers(times.min(), times.max() + 10)),
            filter={"categories": ["odd"]} if number % 4 == 3 else {},
        )
        job = plan(request, recommender, keys, "test")
        out.mkdir()
        make_part(recommender, job, 0, keys, out)
        of_key = lists_in(out).partition_by(column, as_dict=True)
        for key in keys:
            body = json.dumps(job.request(key))
            reply = client.post("/v1/recommend", content=body, headers=JSON).json()
            rows = of_key.get((key,), pl.DataFrame({"item_id": [], "score": [], "source": []}))
            for name in ("item_id", "score", "source"):
                assert rows[name].to_list() == [item[name] for item in reply["items"]]


def test_a_killed_run_goes_on_and_ends_with_equal_bytes(bundles, tmp_path):
    whole, out = tmp_path / "whole", tmp_path / "killed"
    score(asked(bundles, whole))
    manifest = json.loads((whole / MANIFEST).read_text())
    assert manifest["complete"]
    assert manifest["job"]["unix_time"] == 1_700_000_000 + 3_600 * (600 * 8 - 1) + 1

    own = ["-m", "pipelines.cli.main", "score", str(bundles / "bundle-v1")]
    run = [sys.executable, *own, "--out", str(out), "--quiet", "--workers", "2"]
    process = subprocess.Popen(run, start_new_session=True, stderr=subprocess.DEVNULL)
    while process.poll() is None and not list((out / "lists").glob("part-*")):
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    (out / "lists" / ".partial-1-part-00001.parquet").write_bytes(b"torn")
    kept = {path.name: path.stat().st_mtime_ns for path in (out / "lists").glob("part-*")}
    assert kept
    again = subprocess.run(run, check=True, capture_output=True, text=True)
    assert f"{len(kept)} were there" in again.stderr.replace("\n", " ")
    for name, changed in kept.items():
        assert (out / "lists" / name).stat().st_mtime_ns == changed
    files = {path.relative_to(out) for path in out.rglob("*.*") if path.is_file()}
    assert files == {path.relative_to(whole) for path in whole.rglob("*.*") if path.is_file()}
    for path in files - {Path(".lock")}:
        assert (out / path).read_bytes() == (whole / path).read_bytes()


def children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def test_killed_workers_are_replaced(bundles, recommender, tmp_path):
    killed: list[int] = []
    lost: list[object] = []

    def told(message: dict[str, object]) -> None:
        if "lists" in message and not killed:
            killed.extend(pid for own in children(os.getpid()) for pid in children(own))
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
        if "lost" in message:
            lost.append(message["lost"])

    found = score(asked(bundles, tmp_path / "out", workers=2), told)
    assert (found["num_lists"], found["num_failed"], len(lost)) == (600, 0, 1)
    lists = lists_in(tmp_path / "out")
    assert lists["user_id"].n_unique() == 600
    moment = found["unix_time"]
    own = recommender.recommend(["user-3"], k=20, unix_time=moment)
    assert lists.filter(pl.col("user_id") == "user-3").drop("surface", "partition").equals(own)


def test_another_job_in_the_folder_is_refused_by_name(bundles, recommender, tmp_path):
    request = asked(bundles, tmp_path, k=5)
    job = plan(request, recommender, ["user-1"], "1")
    write_manifest(tmp_path, job, {})
    assert asdict(plan(request, recommender, ["user-1"], "1")) == asdict(job)
    for other, keys, named in (
        (replace(request, k=6), ["user-1"], r"another job: k is 5 there, 6 here\. .*--out"),
        (request, ["user-2"], "keys_digest"),
        (replace(request, unix_time=5), ["user-1"], "unix_time"),
    ):
        with pytest.raises(ValueError, match=named):
            plan(other, recommender, keys, "1")
    (tmp_path / MANIFEST).unlink()
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty and holds no lists"):
        plan(request, recommender, ["user-1"], "1")


def test_who_fails_is_named_and_tried_again(bundles, tmp_path):
    out, keys = tmp_path / "out", ["item-1", "item-none", "item-2"]
    request = asked(bundles, out, surface="related", k=3, max_failed_share=0.1)
    with pytest.raises(ValueError, match=r"1 of 3 lists failed, more than .* 0.1 allows"):
        score(request, keys=keys)
    assert not json.loads((out / MANIFEST).read_text())["complete"]
    failure = json.loads((out / "failed" / "part-00000.jsonl").read_text())
    assert failure["id"] == "item-none"
    assert "is not in the catalogue" in failure["error"]
    found = score(replace(request, max_failed_share=0.5), keys=keys)
    assert (found["num_lists"], found["num_failed"], found["parts_made"]) == (2, 1, 1)
    ids = lists_in(out)["query_item_id"].unique(maintain_order=True)
    assert ids.to_list() == ["item-1", "item-2"]


def test_keys_come_from_a_file_or_by_activity(bundles, recommender, tmp_path):
    (tmp_path / "users.csv").write_text("user_id,note\nuser-7,a\nuser-9,b\nuser-7,c\n")
    assert read_ids(str(tmp_path / "users.csv"), "user_id")[0] == ["user-7", "user-9", "user-7"]
    with pytest.raises(ValueError, match="did you mean"):
        read_ids(str(tmp_path / "user.csv"), "user_id")
    request = asked(bundles, tmp_path, active_since=1_700_000_000 + 3_600 * (598 * 8))
    found = list_keys(request, "user_id", recommender.bundle)
    assert set(found) == {"user-599", "user-600"}
    with pytest.raises(ValueError, match="no user of the bundle was active since then"):
        list_keys(replace(request, active_since=2_000_000_000), "user_id", recommender.bundle)
    with pytest.raises(ValueError, match="takes item_ids: choose them by --items"):
        list_keys(replace(request, keys_are="user_id"), "item_id", recommender.bundle)


def test_a_surface_of_a_file_explores_alike_in_every_run(bundles, tmp_path):
    config = tmp_path / "serving.toml"
    config.write_text(SURFACES)
    recommender = Recommender.load(bundles / "bundle-v1", ServingOptions(config=config))
    request = asked(bundles, tmp_path / "a", surface="mail", k=8)
    keys = [f"user-{row}" for row in range(1, 40)]
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        job = plan(replace(request, out=str(tmp_path / name)), recommender, keys, "1")
        check_request(job, recommender)
        make_part(recommender, job, 0, keys, tmp_path / name)
    lists = lists_in(tmp_path / "a")
    assert lists.equals(lists_in(tmp_path / "b"))
    assert lists["surface"].unique().to_list() == ["mail"]
    (tmp_path / "c").mkdir()
    for fields, named in (
        ({"k": 11}, "takes k from 1 to 10, got 11"),
        ({"k": 1_001}, "k: Input should be less than or equal to 1000"),
        ({"surface": "cart"}, "'cart' needs what only a request knows; .* home, "),
    ):
        other = replace(request, out=str(tmp_path / "c"), **fields)
        with pytest.raises(ValueError, match=named):
            check_request(plan(other, recommender, keys, "1"), recommender)
