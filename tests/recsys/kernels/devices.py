"""Where kernels run: on a GPU, or in Triton's interpreter."""

import os

import pytest
import torch

INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETING else "cpu"
ON_A_GPU = DEVICE == "cuda"
RUNS_KERNELS = pytest.mark.gpu if ON_A_GPU else pytest.mark.interpreted(only=True)
"""Mark of tests that launch kernels."""
