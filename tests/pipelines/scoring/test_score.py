"""Batch scoring: the API's lists to the last bit, resumed after kills, refused if jobs differ."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from starlette.testclient import TestClient

from pipelines.engine.artifacts import MANIFEST
from pipelines.scoring.job import ScoreRequest, plan
from pipelines.scoring.parts import make_part
from pipelines.scoring.score import score
from serving.bundle.manifest import publish
from serving.recommend import Recommender
from serving.settings import Settings
from tests.serving.application import create_app
from tests.serving.synthetic_bundle import SyntheticSize, write_synthetic_bundle

JSON = {"content-type": "application/json"}
SIZE = SyntheticSize(num_items=120, num_users=600, history_models=True, ranker=True)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "bundles"
    for number, version in enumerate(("v1", "v2")):
        write_synthetic_bundle(folder, version, replace(SIZE, seed=number))
    publish(folder, "v1")
    return folder


def asked(bundles: Path, out: Path, **fields: object) -> ScoreRequest:
    return ScoreRequest(bundle=str(bundles / "bundle-v1"), out=str(out), **fields)


def lists_in(out: Path) -> pl.DataFrame:
    return pl.read_parquet(out / "lists")


@pytest.mark.parametrize("surface", ["home", "similar"])
def test_lists_are_the_apis_to_the_last_bit(bundles: Path, tmp_path: Path, surface: str) -> None:
    """1,000 random requests, half of each surface: users, items, list length and time."""
    rng = np.random.default_rng(len(surface))
    recommender = Recommender.load(bundles / "bundle-v1")
    table = recommender.bundle.users.user_ids
    if surface == "similar":
        table = recommender.bundle.catalogue.item_ids
    column = "user_id" if surface == "home" else "query_item_id"
    # A batch waits for the ranker as long as it takes, and so has the server to here.
    patient = Settings(
        bundles=bundles, expose_users=True, ranker_timeout_ms=None, beam_timeout_ms=None
    )
    client = TestClient(create_app(patient))
    times = recommender.bundle.users.times
    compared = 0
    for number in range(24):
        keys = [table[row] for row in rng.integers(1, len(table), 25).tolist()]
        keys = list(dict.fromkeys(keys)) + ["nobody"] * (surface == "home")
        moment = int(rng.integers(times.min(), times.max() + 10))
        request = asked(
            bundles,
            tmp_path / str(number),
            surface=surface,
            k=int(rng.integers(1, 60)),
            unix_time=moment,
            filter={"categories": ["odd"]} if number % 4 == 3 else {},
        )
        job = plan(request, recommender, keys, "test")
        (tmp_path / str(number)).mkdir()
        make_part(recommender, job, 0, keys, tmp_path / str(number))
        of_key = lists_in(tmp_path / str(number)).partition_by(column, as_dict=True)
        for key in keys:
            body = json.dumps(job.request(key))
            reply = client.post("/v1/recommend", content=body, headers=JSON).json()
            rows = of_key.get((key,), pl.DataFrame({"item_id": [], "score": [], "source": []}))
            assert rows["item_id"].to_list() == [item["item_id"] for item in reply["items"]]
            # Equal floats of JSON and Parquet are equal bits: both write doubles exactly.
            assert rows["score"].to_list() == [item["score"] for item in reply["items"]]
            assert rows["source"].to_list() == [item["source"] for item in reply["items"]]
            compared += 1
    assert compared >= 500


def test_lists_have_the_columns_of_recommend_and_their_place(bundles: Path, tmp_path: Path) -> None:
    keys = ["user-3", "user-1"]
    found = score(asked(bundles, tmp_path / "out", k=5, unix_time=1_700_100_000), keys=keys)
    own = Recommender.load(bundles / "bundle-v1").recommend(keys, k=5, unix_time=1_700_100_000)
    lists = lists_in(tmp_path / "out")
    assert lists.drop("surface", "partition").equals(own)
    assert lists["surface"].unique().to_list() == ["home"]
    assert lists["partition"].to_list() == [0] * 10
    assert (found["num_lists"], found["rows"], found["num_failed"]) == (2, 10, 0)


def command(bundles: Path, out: Path, *options: str) -> list[str]:
    own = ["-m", "pipelines.cli.main", "score", "--bundle", str(bundles), "--out", str(out)]
    return [sys.executable, *own, "--quiet", *options]


def test_a_killed_run_goes_on_and_ends_with_equal_bytes(bundles: Path, tmp_path: Path) -> None:
    done = command(bundles, tmp_path / "whole", "--workers", "1", "--k", "20")
    subprocess.run(done, check=True, capture_output=True)
    manifest = json.loads((tmp_path / "whole" / MANIFEST).read_text())
    assert manifest["complete"]
    assert manifest["job"]["unix_time"] == 1_700_000_000 + 3_600 * (600 * 8 - 1) + 1

    out = tmp_path / "killed"
    run = command(bundles, out, "--workers", "2", "--k", "20")
    process = subprocess.Popen(run, start_new_session=True, stderr=subprocess.DEVNULL)
    while process.poll() is None and not list((out / "lists").glob("part-*")):
        pass
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
    assert files == {Path(".lock"), Path(MANIFEST)} | {
        Path("lists") / name for name in (f"part-{n:05}.parquet" for n in range(3))
    }
    for path in files - {Path(".lock")}:
        assert (out / path).read_bytes() == (tmp_path / "whole" / path).read_bytes()


def test_a_killed_worker_is_replaced(bundles: Path, tmp_path: Path) -> None:
    killed: list[int] = []
    lost: list[object] = []

    def told(message: dict[str, object]) -> None:
        if "lists" in message and not killed:
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            scorer = next(
                pid
                for pid in children
                if b"pipelines.scoring.process" in Path(f"/proc/{pid}/cmdline").read_bytes()
            )
            workers = Path(f"/proc/{scorer}/task/{scorer}/children").read_text().split()
            killed.append(int(workers[0]))
            os.kill(killed[0], signal.SIGKILL)
        if "lost" in message:
            lost.append(message["how"])

    found = score(asked(bundles, tmp_path / "out", workers=2), told)
    assert (found["num_lists"], lost) == (600, ["signal 9"])
    assert lists_in(tmp_path / "out")["user_id"].n_unique() == 600


def test_another_bundle_or_option_is_refused_by_name(bundles: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    request = asked(bundles, out, k=5)
    score(request, keys=["user-1"])
    before = (out / MANIFEST).read_bytes()
    with pytest.raises(ValueError, match=r"another job: k is 5 there, 6 here\. .*--out"):
        score(replace(request, k=6), keys=["user-1"])
    with pytest.raises(ValueError, match="bundle is 'v1' there, 'v2' here"):
        score(replace(request, bundle=str(bundles / "bundle-v2")), keys=["user-1"])
    with pytest.raises(ValueError, match="keys_digest"):
        score(request, keys=["user-2"])
    with pytest.raises(ValueError, match="unix_time"):
        score(replace(request, unix_time=5), keys=["user-1"])
    assert (out / MANIFEST).read_bytes() == before
    assert score(request, keys=["user-1"])["parts_made"] == 0


def test_a_folder_of_something_else_is_left_alone(bundles: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not empty and holds no lists"):
        score(asked(bundles, tmp_path), keys=["user-1"])


def test_who_fails_is_named_and_tried_again(bundles: Path, tmp_path: Path) -> None:
    out, keys = tmp_path / "out", ["item-1", "item-none", "item-2"]
    request = asked(bundles, out, surface="similar", k=3, max_failed_share=0.5)
    found = score(request, keys=keys)
    assert (found["num_lists"], found["num_failed"]) == (2, 1)
    failure = json.loads((out / "failed" / "part-00000.jsonl").read_text())
    assert failure["id"] == "item-none"
    assert "is not in the catalogue" in failure["error"]
    assert lists_in(out)["query_item_id"].unique(maintain_order=True).to_list() == [
        "item-1",
        "item-2",
    ]
    assert score(request, keys=keys)["parts_made"] == 1

    with pytest.raises(ValueError, match=r"1 of 3 lists failed, more than .* 0.1 allows"):
        score(replace(request, max_failed_share=0.1), keys=keys)
    assert not json.loads((out / MANIFEST).read_text())["complete"]


def test_only_who_was_active_gets_a_list(bundles: Path, tmp_path: Path) -> None:
    last_two = 1_700_000_000 + 3_600 * (598 * 8)
    score(asked(bundles, tmp_path / "out", k=2, active_since=last_two))
    assert set(lists_in(tmp_path / "out")["user_id"]) == {"user-599", "user-600"}
    with pytest.raises(ValueError, match="no user of the bundle was active since then"):
        score(asked(bundles, tmp_path / "none", active_since=2_000_000_000))


def test_options_that_no_request_may_have_are_refused(bundles: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="k: Input should be less than or equal to 1000"):
        score(asked(bundles, tmp_path / "out", k=1_001), keys=["user-1"])
    assert not (tmp_path / "out" / MANIFEST).exists()


def test_users_come_from_a_file(bundles: Path, tmp_path: Path) -> None:
    (tmp_path / "users.csv").write_text("user_id,note\nuser-7,a\nuser-9,b\nuser-7,c\n")
    run = command(bundles, tmp_path / "out", "--users", str(tmp_path / "users.csv"), "--k", "3")
    told = subprocess.run(run, check=True, capture_output=True, text=True).stderr
    assert "2 lists of 6 rows" in told
    assert lists_in(tmp_path / "out")["user_id"].to_list() == ["user-7"] * 3 + ["user-9"] * 3
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    assert manifest["job"]["keys"] == "users.csv"

    wrong = command(bundles, tmp_path / "two", "--users", str(tmp_path / "user.csv"))
    refused = subprocess.run(wrong, check=False, capture_output=True, text=True)
    assert refused.returncode == 2
    assert "did you mean" in refused.stderr


def test_a_surface_of_a_file_explores_alike_in_every_run(bundles: Path, tmp_path: Path) -> None:
    config = tmp_path / "serving.toml"
    config.write_text(
        '[surfaces.mail]\nkind = "home"\nsources = {ease = 1.0, popularity = 0.1}\n'
        'k = 8\nmax_k = 10\nexploration = {method = "epsilon", epsilon = 0.5}\n'
    )
    request = asked(bundles, tmp_path / "a", surface="mail", config=str(config), k=8)
    keys = [f"user-{row}" for row in range(1, 40)]
    score(request, keys=keys)
    score(replace(request, out=str(tmp_path / "b"), workers=2), keys=keys)
    lists = lists_in(tmp_path / "a")
    assert lists.equals(lists_in(tmp_path / "b"))
    assert lists["surface"].unique().to_list() == ["mail"]
    with pytest.raises(ValueError, match="takes k from 1 to 10, got 11"):
        score(replace(request, out=str(tmp_path / "c"), k=11), keys=keys)
    with pytest.raises(ValueError, match=r"'cart' needs what only a request knows; .* home, "):
        score(replace(request, out=str(tmp_path / "d"), surface="cart"), keys=keys)
    with pytest.raises(ValueError, match="takes item_ids: choose them by --items"):
        score(
            replace(request, out=str(tmp_path / "e"), surface="related", keys_are="user_id"),
            keys=keys,
        )
