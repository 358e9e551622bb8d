"""Tasks on two Ray nodes: the same bytes as here, with a node killed midway."""

import os
import signal
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from features.build import build_features
from pipelines.config.operation import RayConfig
from pipelines.engine.errors import ClusterError
from pipelines.engine.ray_cluster import ray_cluster
from pipelines.presets.resolve import resolve
from pipelines.scoring.job import ScoreRequest
from pipelines.scoring.score import score
from pipelines.stages.build_features import features_config
from tests.conftest import TINY_SHOP
from tests.recsys.testing.synthetic import markov_world, write_csv
from tests.serving.synthetic_bundle import SyntheticSize, write_synthetic_bundle

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny shop whose events lie in three files."""
    folder = tmp_path_factory.mktemp("shop")
    write_csv(markov_world(num_users=120, num_items=40, seed=1), folder)
    lines = (folder / "events.csv").read_text().splitlines()
    third = len(lines) // 3
    for number in range(3):
        end = None if number == 2 else (number + 1) * third
        part = lines[1:][number * third : end]
        (folder / f"events-{number}.csv").write_text("\n".join([lines[0], *part]) + "\n")
    files = ", ".join(f'"events-{number}.csv"' for number in range(3))
    text = TINY_SHOP.replace('events = "events.csv"', f"events = [{files}]")
    (folder / "shop.toml").write_text(text)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def square(number: int) -> int:
    return number * number


def dies_once(task: tuple[int, str]) -> int:
    """End the worker of one task, the first time."""
    number, folder = task
    marker = Path(folder) / "died"
    if number == 3 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def always_dies(_: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def reads(path: str) -> str:
    return Path(path).read_text()


def refuses(number: int) -> int:
    raise ValueError(f"{number} is no price")


def test_results_come_in_order_and_a_lost_worker_is_replaced(cluster, tmp_path):
    with ray_cluster(RayConfig()) as run:
        assert len(run.nodes) == 2
        assert run.workers == 2
        assert list(run(square, range(9))) == [number**2 for number in range(9)]
        tasks = [(number, str(tmp_path)) for number in range(6)]
        assert list(run(dies_once, tasks)) == [number**2 for number in range(6)]
    assert (tmp_path / "died").exists()


def test_errors_name_what_and_where(cluster, tmp_path):
    with ray_cluster(RayConfig(retries=0)) as run:
        with pytest.raises(ValueError, match="3 is no price"):
            list(run(refuses, [3]))
        with pytest.raises(FileNotFoundError, match=r"gone\.csv is not on a node .*same paths"):
            list(run(reads, [str(tmp_path / "gone.csv")]))
        with pytest.raises(ClusterError, match=r"a task was lost 1 times: .*tasks_at_once"):
            list(run(always_dies, [1]))


def test_preparation_on_the_cluster_has_the_bytes_of_preparation_here(cluster, shop, tmp_path):
    config = features_config(resolve(shop / "shop.toml", preset=None, assignments=[]))
    build_features(config, tmp_path / "here")
    with ray_cluster(RayConfig()) as run:
        build_features(config, tmp_path / "there", run=run, workers=run.workers)
    assert contents(tmp_path / "there") == contents(tmp_path / "here")


@pytest.mark.slow
def test_a_node_killed_midway_leaves_the_lists_of_one_process(cluster, tmp_path):
    """A third node goes while parts of `recsys score` are made; the others make them."""
    size = SyntheticSize(num_items=60, num_users=1_000, ranker=True)
    write_synthetic_bundle(tmp_path / "bundles", "v1", size)
    bundle = str(tmp_path / "bundles" / "bundle-v1")
    whole = ScoreRequest(bundle=bundle, out=str(tmp_path / "whole"), k=800)
    score(whole)
    third, seen = cluster.add_node(num_cpus=1), threading.Event()
    cluster.wait_for_nodes()

    def kill(message: Mapping[str, object]) -> None:
        if "lists" in message and not seen.is_set():
            seen.set()
            cluster.remove_node(third, allow_graceful=False)

    out = tmp_path / "out"
    request = replace(whole, out=str(out), engine="ray")
    outcome = score(request, kill)
    assert outcome["parts_made"] == outcome["parts"] == 4
    assert contents(out) == contents(tmp_path / "whole")
