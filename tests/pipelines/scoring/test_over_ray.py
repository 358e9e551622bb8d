"""Batch scoring on a Ray cluster: one worker's bytes, a lost node, errors with part and node."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.engine.ray_cluster import SETTINGS
from pipelines.scoring.job import ScoreRequest
from pipelines.scoring.process import part_on_node
from pipelines.scoring.score import score
from tests.serving.synthetic_bundle import SyntheticSize, write_synthetic_bundle

SIZE = SyntheticSize(num_items=60, num_users=1_000, ranker=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> ScoreRequest:
    """Lists that one process of this machine made."""
    folder = tmp_path_factory.mktemp("run")
    write_synthetic_bundle(folder / "bundles", "v1", SIZE)
    request = ScoreRequest(
        bundle=str(folder / "bundles" / "bundle-v1"), out=str(folder / "whole"), k=800
    )
    score(request)
    return request


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[Any]:
    """Two nodes of one CPU on this machine; the second may be killed."""
    pytest.importorskip("ray")
    before = dict(os.environ)
    os.environ.update(SETTINGS)
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    second = cluster.add_node(**node)
    cluster.wait_for_nodes()
    yield cluster, second
    cluster.shutdown()
    os.environ.clear()
    os.environ.update(before)


def files_of(out: str) -> dict[str, bytes]:
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in sorted(Path(out).rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


@pytest.mark.slow
def test_a_node_is_killed_midway_and_the_bytes_are_those_of_one_process(
    whole: ScoreRequest, two_nodes: Any, tmp_path: Path
) -> None:
    cluster, second = two_nodes
    out, seen = tmp_path / "out", threading.Event()

    def kill(message: Any) -> None:
        if "part" in message and not seen.is_set():
            seen.set()
            cluster.remove_node(second, allow_graceful=False)

    request = replace(whole, out=str(out), engine="ray", address=cluster.address)
    outcome = score(request, kill)
    assert seen.is_set()
    assert outcome["parts_made"] == outcome["parts"] == 4
    assert files_of(str(out)) == files_of(whole.out)


def test_lists_that_are_there_need_no_cluster(whole: ScoreRequest) -> None:
    before = files_of(whole.out)
    outcome = score(replace(whole, engine="ray", address="127.0.0.1:1"))
    assert outcome["parts_made"] == 0
    assert files_of(whole.out) == before


def test_a_node_without_the_bundle_or_the_folder_says_what_to_do(
    whole: ScoreRequest, tmp_path: Path
) -> None:
    gone = replace(whole, bundle=str(tmp_path / "bundle-v1"))
    with pytest.raises(ValueError, match=r"part 3 on node .*there is no bundle at .*all nodes"):
        part_on_node((gone, None, 3, ["1"]))  # type: ignore[arg-type]
    elsewhere = replace(whole, out=str(tmp_path))
    with pytest.raises(ValueError, match="is not that of the job: put it on a file system"):
        part_on_node((elsewhere, None, 0, ["1"]))  # type: ignore[arg-type]


def test_an_address_without_the_engine_is_refused() -> None:
    with pytest.raises(ValueError, match="add --engine ray"):
        ScoreRequest(bundle="bundle", out="out", address="127.0.0.1:1")
