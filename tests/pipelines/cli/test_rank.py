"""What a rank writes down for the process that launched it."""

from pathlib import Path

import pytest
import torch

from pipelines.cli.rank import LogFile, describe_error
from pipelines.engine.launch import passed_on
from pipelines.engine.run_log import RunLog
from recsys.training.distributed.several import RanksError


def test_a_gpu_out_of_memory_says_what_to_change() -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    found = describe_error(error, 3)
    assert found["kind"] == "MemoryError"
    assert "rank 3 on " in str(found["message"])
    assert "Tried to allocate 2.00 GiB. Make batch_size" in str(found["message"])
    assert "torchrun.shard_from" in str(found["message"])


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("no events"), "ValueError"),
        (RanksError("the nodes have different versions of torch"), "ValueError"),
        (OSError(28, "No space left on device"), "OSError"),
        (ZeroDivisionError("bug"), ""),
    ],
)
def test_other_errors_keep_their_kind_and_words(error: Exception, kind: str) -> None:
    found = describe_error(error, 0)
    assert (found["kind"], found["rank"]) == (kind, 0)
    assert found["message"] == str(error)


class Kept(RunLog):
    def __init__(self) -> None:
        self.found: list[object] = []

    def log(self, step: int, **values: float) -> None:
        self.found.append((step, values))

    def metrics(self, values: object) -> None:
        self.found.append(values)

    def tags(self, values: object) -> None:
        self.found.append(values)


def test_what_a_rank_logs_reaches_the_run(tmp_path: Path) -> None:
    log, kept = LogFile(tmp_path / "logged.jsonl"), Kept()
    log.log(7, loss=0.25)
    log.metrics({"test/ndcg@10": 0.1})
    log.tags({"served": "yes"})
    passed_on(tmp_path / "logged.jsonl", 0, kept)
    assert kept.found == [
        (7, {"loss": 0.25}),
        {"test/ndcg@10": 0.1},
        {"served": "yes"},
    ]
