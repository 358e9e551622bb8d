"""What a rank writes down for the process that launched it."""

import pytest
import torch

from pipelines.cli.rank import describe_error
from recsys.training.distributed.several import RanksError


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), "MemoryError", "torchrun.shard_from"),
        (ValueError("no events"), "ValueError", "no events"),
        (RanksError("different versions of torch"), "ValueError", "different versions of torch"),
        (OSError(28, "No space left on device"), "OSError", "No space left on device"),
        (ZeroDivisionError("bug"), "", "bug"),
    ],
)
def test_errors_keep_their_kind_and_words(error: Exception, kind: str, message: str) -> None:
    found = describe_error(error, 3)
    assert (found["kind"], found["rank"]) == (kind, 3)
    assert message in str(found["message"])
