"""The cases that kernels are tuned on, at small sizes against plain torch."""

import pytest
import torch

from tests.benchmarks.kernels.tune_cases import FAMILIES

SMALL = {
    "embedding_bag": (2, 1_000, 64, 64, 5),
    "topk_search": (2_000, 8, 64),
    "hstu_attention": (4, 64, 2, 32),
}


@pytest.mark.skipif(torch.cuda.is_available(), reason="compares on a CPU")
@pytest.mark.parametrize("family", SMALL)
def test_each_case_holds_its_kernel_against_the_truth(family: str) -> None:
    for settings in FAMILIES[family].variants.values():
        prepared = FAMILIES[family].prepare(SMALL[family], torch.device("cpu"), **settings)
        for call in prepared.ours:
            call()
        assert 0 <= prepared.error() <= prepared.tolerance
