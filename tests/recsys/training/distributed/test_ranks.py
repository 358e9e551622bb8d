"""Several ranks train what one process trains, and go on where another number of ranks stopped."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from recsys.training.checkpoint import load_latest
from recsys.training.distributed.several import (
    COMPARED,
    RanksError,
    check_versions,
    local_device,
    own_versions,
)
from recsys.training.distributed.sharded import choose_rule
from recsys.training.passes import AdamWConfig, ShardingConfig
from recsys.training.ranks import means_full
from tests.recsys.training.distributed import ranks_at_work
from tests.recsys.training.distributed.ranks_at_work import CASES, OTHERS

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks run every case, and stop two of them again."""
    folder = tmp_path_factory.mktemp("ranks")
    command = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    work = Path(ranks_at_work.__file__)
    done = subprocess.run(
        [sys.executable, "-m", *command, work, folder, *CASES, *OTHERS, "adagrad@4", "clipped@5"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


def test_updates_of_sharded_tables_are_counted(folder: Path) -> None:
    """Adam's bias corrections need their number."""
    checkpoint = load_latest(folder / "clipped-checkpoints")
    steps = {
        name: int(value)
        for name, value in checkpoint.tensors["optimizer"].items()
        if name.startswith("step/") and ".embedding_bags." in name
    }
    assert list(steps.values()) == [checkpoint.step] * 2


@pytest.fixture(scope="module")
def alone() -> dict[str, dict[str, torch.Tensor]]:
    return {case: ranks_at_work.run(case, None) for case in (*CASES, *OTHERS)}


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], since: int = 0):
    assert one.keys() == other.keys()
    for name, value in one.items():
        expected = value[since:] if name == "losses" else value
        # Sums in another order; six steps of Adam carry a rounding on to about 1e-5.
        torch.testing.assert_close(other[name], expected, rtol=1e-4, atol=2e-5, msg=name)


@pytest.mark.parametrize("case", [*CASES, *OTHERS])
def test_two_ranks_train_what_one_process_trains(folder: Path, alone, case: str) -> None:
    found = load_file(folder / f"{case}-2.safetensors")
    assert found["losses"].numel()
    assert_same(alone[case], found)


def test_one_process_goes_on_with_the_checkpoint_of_two(folder: Path, alone) -> None:
    found = ranks_at_work.run("adagrad", folder / "adagrad-checkpoints")
    assert_same(alone["adagrad"], found, since=3)


def test_ranks_of_other_versions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    own = own_versions(COMPARED) | {"node": "here", "torch": "2.13.0"}
    there = json.dumps(own | {"node": "there", "torch": "2.11.0"})
    module = "recsys.training.distributed.several.gathered_texts"
    monkeypatch.setattr(module, lambda text: [text, text])
    check_versions(own)
    monkeypatch.setattr(module, lambda text: [text, there])
    with pytest.raises(
        RanksError, match=r"of torch: 2\.11\.0 on there; 2\.13\.0 on here\. Install"
    ):
        check_versions(own)


def test_rules_and_sizes_decide_what_is_sharded() -> None:
    layer = ranks_at_work.model().item_tower.tables
    small, all_of_it = ShardingConfig(), ShardingConfig(shard_from=0)
    assert choose_rule(layer, AdamWConfig(tables="rowwise_adagrad"), small) is None
    assert choose_rule(layer, AdamWConfig(tables="dense"), all_of_it) is None
    # One process moves every row at every step on a CPU, and so does each of several.
    assert choose_rule(layer, AdamWConfig(), all_of_it) is None
    assert choose_rule(layer, AdamWConfig(tables="adam"), all_of_it) == "adam"


def test_more_ranks_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(RanksError, match=r"needs GPU 2, and .* has 2; set torchrun\.processes"):
        local_device("cuda")
    with pytest.raises(RanksError, match="'cuda:1' names one GPU, and several ranks take one each"):
        local_device("cuda:1")


@pytest.mark.parametrize(("free", "lacks"), [(100 << 20, True), (10 << 30, False)])
def test_an_error_of_nccl_is_of_memory_if_there_is_little(
    monkeypatch: pytest.MonkeyPatch, free: int, lacks: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 80 << 30))
    assert means_full(RuntimeError("NCCL error: unhandled cuda error")) is lacks
    assert means_full(torch.OutOfMemoryError("CUDA out of memory."))
