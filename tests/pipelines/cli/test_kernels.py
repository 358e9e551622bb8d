import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from pipelines.cli.main import app
from pipelines.kernel_bench import workloads as kernel_workloads
from pipelines.kernel_bench.workload import Prepared, Workload
from pipelines.kernel_bench.workloads import FAMILIES
from recsys.kernels import tuning
from recsys.kernels.tuning import config_for

SMALL = {
    "embedding_bag": (2, 1_000, 64, 64, 5),
    "topk_search": (2_000, 8, 64),
    "hstu_attention": (4, 64, 2, 32),
    "routed_experts": (64, 16, 32),
}
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tells what a CPU does")


def recsys(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize("family", FAMILIES)
def test_each_case_holds_its_kernel_against_the_truth(family: str) -> None:
    for settings in FAMILIES[family].variants.values():
        prepared = FAMILIES[family].prepare(SMALL[family], torch.device("cpu"), **settings)
        for call in prepared.ours:
            call()
        assert 0 <= prepared.error() <= prepared.tolerance


@pytest.mark.parametrize("command", [("tune",), ("profile", "embedding_bag")])
def test_what_needs_a_gpu_says_so(command: tuple[str, ...], tmp_path: Path) -> None:
    found = recsys("kernels", *command)
    assert found.exit_code == 2
    assert f"recsys kernels {command[0]} needs a CUDA GPU" in found.stderr


def test_an_unknown_kernel_is_named_with_those_there_are() -> None:
    found = recsys("kernels", "tune", "--kernel", "matmul")
    assert found.exit_code == 2
    assert "no kernel matmul; there are embedding_bag, topk_search, hstu_attention" in found.stderr
    assert "routed_experts" in found.stderr


def test_tune_climbs_from_what_a_launch_asks_and_keeps_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A made launch whose work follows its configuration, on a device that only has a name."""
    monkeypatch.setattr("pipelines.cli.kernels.needs_gpu", lambda device, command: None)
    monkeypatch.setattr("pipelines.cli.kernels.name_of", lambda device: "Test GPU")
    times: list[dict[str, int]] = []

    def launch() -> dict[str, int]:
        return config_for("topk_search.made", "dim64", torch.float32, {"block": 16, "num_warps": 4})

    def median(calls: object) -> float:
        times.append(launch())
        return 1 + abs(times[-1]["block"] - 64) + abs(times[-1]["num_warps"] - 4)

    case = Workload(
        kernel="topk_search",
        name="made",
        prepare=lambda device: Prepared(ours=[launch], error=lambda: 0.0, tolerance=1.0),
    )
    monkeypatch.setattr(kernel_workloads, "workloads", lambda: [case])
    monkeypatch.setattr("recsys.kernels.measure.median_ms", median)
    found = recsys("kernels", "tune", "--output", tmp_path)
    assert found.exit_code == 0, found.output
    assert "1 configurations in" in found.stdout
    document = json.loads((tmp_path / "test-gpu.json").read_text())
    (entry,) = document["entries"].values()
    assert entry["config"] == {"block": 64, "num_warps": 4}
    assert (entry["ms"], entry["default_ms"]) == (1.0, 49.0)
    assert entry["source"] == tuning.source_digest("topk_search")


def test_tune_of_launches_that_ask_nothing_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("pipelines.cli.kernels.needs_gpu", lambda device, command: None)
    case = Workload(
        kernel="topk_search",
        name="made",
        prepare=lambda device: Prepared(ours=[lambda: 0], error=lambda: 0.0, tolerance=1.0),
    )
    monkeypatch.setattr(kernel_workloads, "workloads", lambda: [case])
    found = recsys("kernels", "tune", "--output", tmp_path / "none")
    assert found.exit_code == 0
    assert "asks for a configuration" in found.stdout
    assert not (tmp_path / "none").exists()
