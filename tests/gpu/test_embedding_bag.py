"""What only a GPU can show of the embedding bags: sizes beyond 2^31 and races of many programs."""

from __future__ import annotations

import pytest
import torch

from recsys.kernels.embedding_bag.layout import OptimizerConfig, TableLayout
from recsys.kernels.embedding_bag.op import FusedEmbeddingBags

pytestmark = pytest.mark.gpu


def test_rows_beyond_two_to_the_31_elements(cuda: torch.device) -> None:
    rows, dim = 40_000_000, 64
    layout = TableLayout((rows, 5), (dim, dim), (0, 1))
    bags = FusedEmbeddingBags(
        layout, OptimizerConfig(), learning_rate=0.5, dtype=torch.bfloat16, device=cuda
    )
    ids = torch.tensor([rows - 1, rows - 2, 0, 4], device=cuda)
    bags.table(0)[rows - 1] = 3.0
    out = bags(ids, torch.tensor([0, 1, 2, 3, 4], device=cuda))
    assert torch.equal(out[0, :dim], torch.full((dim,), 3.0, device=cuda))
    out.backward(torch.ones_like(out))
    # A first Adagrad step is the learning rate in the direction of the gradient.
    assert torch.equal(bags.table(0)[rows - 1].float(), torch.full((dim,), 2.5, device=cuda))
    assert torch.equal(bags.table(1)[4].float(), torch.full((dim,), -0.5, device=cuda))
    assert int((bags.second != 0).sum()) == 4
    assert int((bags.weights != 0).sum()) == 4 * dim


@pytest.mark.parametrize("alpha", [0.0, 3.0])
def test_same_bits_in_five_large_runs(cuda: torch.device, alpha: float) -> None:
    layout = TableLayout((100_000, 50_000), (128, 32), (0, 1, 0))
    generator = torch.Generator(cuda).manual_seed(0)
    ids = (torch.rand(3 * 4096 * 20, generator=generator, device=cuda).pow(alpha + 1) * 5e4).long()
    offsets = torch.arange(3 * 4096 + 1, device=cuda) * 20
    grad = torch.randn(4096, 288, generator=generator, device=cuda)
    runs = []
    for _ in range(5):
        bags = FusedEmbeddingBags(layout, OptimizerConfig(), device=cuda)
        bags(ids, offsets).backward(grad)
        runs.append((bags.weights, bags.second))
    assert all(torch.equal(weights, runs[0][0]) for weights, _ in runs)
    assert all(torch.equal(second, runs[0][1]) for _, second in runs)
