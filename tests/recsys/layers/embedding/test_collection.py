import pytest
import torch

from recsys.data.batch import Jagged, JaggedBatch
from recsys.layers.embedding.collection import EmbeddingBags, TableConfig

pytestmark = pytest.mark.numerics

TABLES = [
    TableConfig(name="item", num_rows=11, embedding_dim=6, features=("history", "item")),
    TableConfig(
        name="category", num_rows=5, embedding_dim=3, features=("item.categories",), pooling="mean"
    ),
]
# Agreement of the two backends in float32, as the class promises it.
TOLERANCE = {"atol": 1e-6, "rtol": 1e-6}


@pytest.fixture(params=["torch", "torchrec"])
def backend(request):
    if request.param == "torchrec":
        pytest.importorskip("torchrec")
    return request.param


@pytest.mark.parametrize("weighted", [False, True])
def test_backends_agree_forward_and_backward(weighted):
    pytest.importorskip("torchrec")
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(0, 9, (64,), generator=generator)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    num_values = int(offsets[-1])
    history = Jagged(torch.randint(0, 11, (num_values,), generator=generator), offsets)
    if weighted:
        history = history._replace(weights=torch.rand(num_values, generator=generator))
    categories = history._replace(values=history.values % 5)
    item = Jagged.one_each(torch.randint(0, 11, (64,), generator=generator))
    batch = JaggedBatch({"history": history, "item": item, "item.categories": categories})

    results = []
    for backend in ("torch", "torchrec"):
        torch.manual_seed(0)
        bags = EmbeddingBags(TABLES, backend)
        pooled = bags(batch)
        sum(value.square().sum() for value in pooled.values()).backward()
        gradients = {name: bags.weight(name).grad for name in bags.tables}
        results.append((pooled, gradients, torch.rand(1)))
    (plain, plain_gradients, plain_draw), (pooled, gradients, draw) = results
    assert torch.equal(plain_draw, draw), "construction leaves the generator in the same state"
    for name in plain:
        torch.testing.assert_close(pooled[name], plain[name], **TOLERANCE)
    for name in plain_gradients:
        torch.testing.assert_close(gradients[name], plain_gradients[name], **TOLERANCE)
