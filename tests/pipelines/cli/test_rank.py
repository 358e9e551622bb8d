"""What a rank writes down for the process that launched it."""

import pytest
import torch

from pipelines.cli.rank import describe_error
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
