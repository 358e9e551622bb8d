"""Ranks placed by Ray on two nodes: one process's weights, torchrun's weights, one clear error."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.config.operation import RayConfig
from pipelines.config.run import RunConfig
from pipelines.engine.ray_ranks import LOG, PROCESS, Place, set_variables, size_bundle
from pipelines.engine.runner import run_stages
from tests.pipelines.engine.two_groups import (
    CHOSEN,
    assert_ends_where_one_process_ends,
    assert_names_the_killed_rank,
    error_of_a_killed_rank,
    settings,
)

pytest.importorskip("ray")


def on_ray(folder: Path, workspace: str = "ray", ranks: int = 2) -> RunConfig:
    config = settings(folder, "ray")
    return replace(config, workspace=folder / workspace, ray=RayConfig(ranks=ranks))


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def rank_of(step: Path) -> int:
    """Process of the rank whose latest step a file says."""
    return int((step.parent / PROCESS.format(step.name.rpartition("-")[2])).read_text())


@pytest.fixture(scope="module")
def killed(folder: Path, cluster: object) -> str:
    """The error of a run whose second rank was killed, before one that resumed."""
    config = on_ray(folder)
    error = error_of_a_killed_rank(config, 1, rank_of)
    assert list(config.workspace.glob(f"checkpoints/*/ranks/{LOG.format(1)}"))
    run_stages(CHOSEN, config)
    return error


def test_a_killed_rank_is_named_with_its_signal_and_its_log(killed: str) -> None:
    assert_names_the_killed_rank(killed)


def test_ranks_of_ray_end_where_one_process_ends(folder: Path, killed: str) -> None:
    assert_ends_where_one_process_ends(folder, "ray", engine="ray", ranks=2)


def test_a_rank_whose_ray_worker_is_killed_is_named(folder: Path, killed: str) -> None:
    config = on_ray(folder, "worker")
    error = error_of_a_killed_rank(config, 0, lambda step: parent_of(rank_of(step)))
    assert re.search(r"rank 0 of 2 \(process [1-9]\d* on .* was killed by", error)


def test_a_cluster_too_small_for_the_ranks_is_refused(folder: Path, killed: str) -> None:
    with pytest.raises(ValueError, match=r"ray\.ranks = 3 need 3 CPU, and the cluster has 2"):
        run_stages(CHOSEN, on_ray(folder, "small", ranks=3))


def test_a_rank_takes_a_gpu_where_the_cluster_has_any(tmp_path: Path) -> None:
    config = RunConfig(workspace=tmp_path, ray=RayConfig(ranks=4))
    assert size_bundle(config, {"CPU": 8, "GPU": 4}) == {"CPU": 1, "GPU": 1}
    assert size_bundle(config, {"CPU": 8}) == {"CPU": 1}
    with pytest.raises(ValueError, match=r"need 4 GPU, and the cluster has 3"):
        size_bundle(config, {"CPU": 8, "GPU": 3})


def test_ranks_meet_at_the_first_and_use_the_network_where_nodes_are_several() -> None:
    places = [Place("a", "one", "10.0.0.1", 5), Place("a", "one", "10.0.0.1", 6)]
    found = set_variables([*places, Place("b", "two", "10.0.0.2", 7)])
    assert [one["RANK"] for one in found] == ["0", "1", "2"]
    assert [one["LOCAL_WORLD_SIZE"] for one in found] == ["2", "2", "1"]
    assert {(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in found} == {("10.0.0.1", "5")}
    assert "GLOO_SOCKET_IFNAME" not in found[0] or "GLOO_SOCKET_IFNAME" in os.environ
    assert "GLOO_SOCKET_IFNAME" in set_variables(places)[0] or os.name != "posix"


def test_impossible_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="must be >= 1"):
        RayConfig(ranks=0)
