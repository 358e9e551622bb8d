"""Candidates of the ranker's training as tasks on two Ray nodes, one of which is killed."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result

from pipelines.executor.ray_cluster import RayRunner
from tests.integration.test_train_ranker import SETTINGS, run, until_blend
from tests.pipelines.executor.two_nodes import joined_nodes

ray = pytest.importorskip("ray")
Recsys = Callable[..., Result]


@pytest.fixture
def cluster() -> Iterator[object]:
    with joined_nodes() as made:
        yield made


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "run.json"
    }


def test_candidates_made_on_the_cluster_train_the_ranker_that_candidates_made_here_train(
    cluster, shop: Path, recsys: Recsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Some ten tasks; their queries are the batches of a run here.
    monkeypatch.setattr("recsys.fitting.queries.MAX_QUERIES", 16)
    monkeypatch.setattr("pipelines.ranking.over_ray.QUERIES_A_TASK", 16)
    here = until_blend(shop, tmp_path / "here")
    assert run(recsys, shop, here, ("train_ranker",)).exit_code == 0

    counts: list[list[object]] = []
    call = RayRunner.__call__

    def losing_a_node(self, function, tasks):
        counts.append([])
        for result in call(self, function, tasks):
            if cluster.worker_nodes:
                cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
            counts[-1].append(result)
            yield result

    monkeypatch.setattr(RayRunner, "__call__", losing_a_node)
    there = until_blend(shop, tmp_path / "there")
    result = run(recsys, shop, there, ("train_ranker",), (*SETTINGS, "engine=ray"))
    assert result.exit_code == 0, result.output
    # Of events that retrievers were refitted without, and of validation.
    assert len(counts) == 2
    assert min(map(len, counts)) > 1
    assert contents(there / "train_ranker") == contents(here / "train_ranker")
    assert json.loads((there / "train_ranker/run.json").read_text())["engine"] == "ray"
