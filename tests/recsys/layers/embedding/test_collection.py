import pytest
import torch
from safetensors.torch import load_file, save_file

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


def batch_of_two(weighted: bool) -> JaggedBatch:
    history = Jagged.from_lists([[7, 3, 7], []])
    categories = Jagged.from_lists([[1, 4], [2]])
    if weighted:
        history = history._replace(weights=torch.tensor([0.5, 2.0, -1.0]))
        categories = categories._replace(weights=torch.tensor([3.0, 1.0, 0.0]))
    return JaggedBatch(
        {
            "history": history,
            "item": Jagged.one_each(torch.tensor([0, 10])),
            "item.categories": categories,
            "unused": Jagged.from_lists([[99], [99]]),
        }
    )


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


@pytest.mark.parametrize(("source", "target"), [("torch", "torchrec"), ("torchrec", "torch")])
def test_state_is_one_tensor_per_table_and_loads_into_the_other_backend(source, target, tmp_path):
    pytest.importorskip("torchrec")
    saved = EmbeddingBags(TABLES, source)
    state = saved.state_dict()
    assert {name: tuple(value.shape) for name, value in state.items()} == {
        "collection.embedding_bags.item.weight": (11, 6),
        "collection.embedding_bags.category.weight": (5, 3),
    }
    assert [name for name, _ in saved.named_parameters()] == list(state)
    save_file(dict(state), tmp_path / "state.safetensors")
    loaded = EmbeddingBags(TABLES, target)
    loaded.load_state_dict(load_file(tmp_path / "state.safetensors"))
    batch = batch_of_two(weighted=True)
    for name, value in saved(batch).items():
        torch.testing.assert_close(loaded(batch)[name], value, **TOLERANCE)


@pytest.mark.parametrize("bad", [-1, 11])
def test_id_outside_its_table_names_feature_value_and_range(backend, bad):
    bags = EmbeddingBags(TABLES, backend)
    batch = batch_of_two(weighted=False)
    features = {**batch.features, "history": Jagged.from_lists([[3, bad], [2]])}
    with pytest.raises(ValueError, match=rf"'history' has id {bad}; its table allows \[0, 11\)"):
        bags(JaggedBatch(features))
    with pytest.raises(ValueError, match=rf"'item' has id {bad}"):
        bags.lookup("item", torch.tensor([bad]))
