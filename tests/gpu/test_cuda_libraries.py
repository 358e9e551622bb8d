"""The CUDA builds of FBGEMM, TorchRec and faiss; each is skipped where it is not installed."""

import numpy as np
import pytest
import torch

from recsys.data.batch import Jagged, JaggedBatch
from recsys.layers.embedding.collection import EmbeddingBags, TableConfig

pytestmark = pytest.mark.gpu

TABLES = [
    TableConfig(name="item", num_rows=5_000, embedding_dim=32, features=("history", "item")),
    TableConfig(
        name="category",
        num_rows=40,
        embedding_dim=32,
        features=("item.categories",),
        pooling="mean",
    ),
]
# Float32 sums in another order, of at most 60 rows of length 1.
TOLERANCE = {"atol": 1e-5, "rtol": 1e-5}


def random_batch(weighted: bool) -> JaggedBatch:
    """Histories of 0 to 60 values, some empty, ids repeated."""
    random = np.random.default_rng(2)

    def feature(num_rows: int, longest: int) -> Jagged:
        lengths = random.integers(0, longest + 1, 256)
        values = Jagged(
            torch.from_numpy(random.integers(0, num_rows, lengths.sum())),
            torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)])),
        )
        if not weighted:
            return values
        return values._replace(weights=torch.from_numpy(random.random(lengths.sum())).float())

    return JaggedBatch(
        {
            "history": feature(5_000, 60),
            "item": feature(5_000, 1),
            "item.categories": feature(40, 3),
        }
    )


def pooled_and_gradients(
    backend: str, device: torch.device, weighted: bool
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    torch.manual_seed(4)
    bags = EmbeddingBags(TABLES, backend).to(device)
    pooled = bags(random_batch(weighted).to(device))
    generator = torch.Generator().manual_seed(5)
    total = torch.zeros((), device=device)
    for value in pooled.values():
        total = total + (value * torch.randn(value.shape, generator=generator).to(device)).sum()
    total.backward()
    gradients = {table.name: bags.weight(table.name).grad for table in TABLES}
    return pooled, gradients


@pytest.mark.parametrize("weighted", [False, True])
def test_torchrec_pools_on_cuda_as_torch_does(cuda: torch.device, weighted: bool):
    pytest.importorskip("torchrec", reason="needs torchrec and the CUDA build of fbgemm-gpu")
    ours, our_gradients = pooled_and_gradients("torchrec", cuda, weighted)
    theirs, their_gradients = pooled_and_gradients("torch", cuda, weighted)
    assert list(ours) == list(theirs)
    for name, value in theirs.items():
        assert ours[name].device == cuda
        torch.testing.assert_close(ours[name], value, **TOLERANCE)
    for name, gradient in their_gradients.items():
        torch.testing.assert_close(our_gradients[name], gradient, **TOLERANCE)
