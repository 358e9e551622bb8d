import os

import pytest
import torch

# Read once, when CUDA's matrix library starts: without it its sums are not reproducible.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@pytest.fixture(autouse=True)
def cuda() -> torch.device:
    """The GPU, or the reason why there is nothing to test."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return torch.device("cuda", 0)
