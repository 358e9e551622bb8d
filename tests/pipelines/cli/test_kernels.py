import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from pipelines.cli.main import app
from pipelines.kernel_bench import workloads as kernel_workloads
from pipelines.kernel_bench.workload import Prepared, Workload
from recsys.kernels import tuning
from recsys.kernels.tuning import config_for

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tells what a CPU does")


def recsys(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def made(kernel: str, error: float) -> Workload:
    def prepare(device: torch.device) -> Prepared:
        return Prepared(
            ours=[lambda: torch.ones(10).sum()],
            peers={"torch": [lambda: torch.ones(10).sum()]},
            error=lambda: error,
            tolerance=1e-5,
            num_bytes=40,
        )

    return Workload(kernel=kernel, name="made", prepare=prepare)


def test_bench_on_a_cpu_runs_the_reference_and_says_so() -> None:
    found = recsys("kernels", "bench", "--kernel", "hstu_attention", "-k", "topk_search")
    assert found.exit_code == 0, found.output
    assert "no GPU here: ours is the reference in plain PyTorch" in found.stdout
    assert "hstu_attention" in found.stdout
    assert "topk_search" in found.stdout
    assert "embedding_bag" not in found.stdout
    assert "WRONG" not in found.stdout


def test_bench_of_embedding_bags_checks_both_directions() -> None:
    found = recsys("kernels", "bench", "--kernel", "embedding_bag", "--json")
    assert found.exit_code == 0, found.output
    document = json.loads(found.stdout)
    assert (document["device"], document["copy_rate"]) == ("CPU", None)
    forward, step = document["rows"]
    for row in (forward, step):
        assert row["is_right"]
        assert 0 <= row["error"] < 1e-5
        assert row["ms"] > 0
        assert row["peers_ms"]["torch"] > 0
        assert row["share_of_copy_rate"] is None
    # 2 x 10,000 rows of 64, 2,560 ids: rows that occur and ids are read, results written.
    rows = forward["num_bytes"] - 256 * 128 * 4 - 2_560 * 8
    assert 2_000 * 256 < rows <= 2_560 * 256
    assert step["num_bytes"] > 2 * forward["num_bytes"]


def test_bench_of_attention_checks_both_directions() -> None:
    found = recsys("kernels", "bench", "-k", "hstu_attention", "--json")
    assert found.exit_code == 0, found.output
    rows = json.loads(found.stdout)["rows"]
    assert [row["kernel"] for row in rows] == ["hstu_attention"] * 2
    for row in rows:
        assert row["is_right"], row["workload"]
        assert row["error"] < 1e-5
        assert row["ms"] > 0
        assert row["peers_ms"]["torch"] > 0
    attention, step = rows
    # 4 sequences of 64, 2 heads of 32.
    seconds = attention["ms"] * 1e-3
    assert attention["tflops"] * seconds * 1e12 == pytest.approx(2 * 4 * 2 * 64 * 64 * 32)
    assert step["tflops"] * step["ms"] == pytest.approx(3.5 * attention["tflops"] * attention["ms"])


def test_bench_of_experts_checks_both_directions() -> None:
    found = recsys("kernels", "bench", "-k", "routed_experts", "--json")
    assert found.exit_code == 0, found.output
    rows = json.loads(found.stdout)["rows"]
    assert len(rows) == 2
    # 64 rows visit two experts of width 16 and inner width 32.
    for row, products in zip(rows, (2, 6), strict=True):
        assert row["is_right"], row["workload"]
        assert row["error"] < 1e-5
        flops = row["tflops"] * row["ms"] * 1e9
        assert flops == pytest.approx(products * 2 * 64 * 2 * 16 * 32)


@pytest.mark.parametrize("error", [1e-3, float("nan"), float("inf")])
def test_a_wrong_result_gets_no_time_and_no_speed_up(
    monkeypatch: pytest.MonkeyPatch, error: float
) -> None:
    cases = [made("topk_search", error), made("embedding_bag", 0.0)]
    monkeypatch.setattr(kernel_workloads, "workloads", lambda device: cases)
    found = recsys("kernels", "bench")
    assert found.exit_code == 3
    assert "WRONG: error" in found.stdout
    assert found.stdout.count("x)") == 1, "only the right one has a ratio"
    assert "1 of 2 results are wrong: topk_search (made)" in found.stderr
    document = json.loads(recsys("kernels", "bench", "--json").stdout)
    assert document["rows"][0]["ms"] is None
    assert document["rows"][0]["peers_ms"] is None
    assert document["rows"][1]["ms"] > 0


@pytest.mark.parametrize("command", [("tune",), ("profile", "embedding_bag")])
def test_what_needs_a_gpu_says_so(command: tuple[str, ...], tmp_path: Path) -> None:
    found = recsys("kernels", *command)
    assert found.exit_code == 2
    assert f"recsys kernels {command[0]} needs a CUDA GPU" in found.stderr
    assert "bench" in found.stderr


def test_an_unknown_kernel_is_named_with_those_there_are() -> None:
    found = recsys("kernels", "bench", "--kernel", "matmul")
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

    def median(calls: object, device: object) -> float:
        times.append(launch())
        return 1 + abs(times[-1]["block"] - 64) + abs(times[-1]["num_warps"] - 4)

    case = Workload(
        kernel="topk_search",
        name="made",
        prepare=lambda device: Prepared(ours=[launch], error=lambda: 0.0, tolerance=1.0),
    )
    monkeypatch.setattr(kernel_workloads, "workloads", lambda device: [case])
    monkeypatch.setattr("pipelines.cli.kernels.median_of", median)
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
    monkeypatch.setattr(kernel_workloads, "workloads", lambda device: [made("topk_search", 0.0)])
    found = recsys("kernels", "tune", "--output", tmp_path / "none")
    assert found.exit_code == 0
    assert "asks for a configuration" in found.stdout
    assert not (tmp_path / "none").exists()
