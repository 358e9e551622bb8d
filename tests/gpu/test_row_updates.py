"""Rows that move inside the backward on CUDA: our kernels and FBGEMM against plain torch."""

import pytest
import torch

from recsys.data.batch import Jagged, JaggedBatch
from recsys.layers.embedding.collection import EmbeddingBags, RowUpdateConfig, TableConfig

pytestmark = pytest.mark.gpu

TABLES = [
    TableConfig(name="item", num_rows=5_000, embedding_dim=64, features=("history", "item")),
    TableConfig(
        name="category", num_rows=40, embedding_dim=32, features=("categories",), pooling="mean"
    ),
]
RULES = ("sgd", "rowwise_adagrad", "adam", "rowwise_adam")
# Of the norm: sums of up to thousands of gradients of one row, in another order.
TOLERANCE = 1e-5


@pytest.fixture(params=["triton", "torchrec"])
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "torchrec":
        pytest.importorskip("fbgemm_gpu", reason="needs the CUDA build of fbgemm-gpu")
    return str(request.param)


def random_batch(seed: int, device: torch.device, weighted: bool = False) -> JaggedBatch:
    """Ids with repeats and a hot row, empty examples."""
    generator = torch.Generator().manual_seed(seed)

    def feature(num_rows: int, longest: int) -> Jagged:
        lengths = torch.randint(0, longest + 1, (300,), generator=generator)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        count = int(offsets[-1])
        ids = torch.randint(0, num_rows, (count,), generator=generator)
        weights = torch.rand(count, generator=generator) if weighted else None
        return Jagged(torch.where(ids % 3 == 0, 7, ids), offsets, weights)

    batch = {"history": feature(5_000, 50), "item": feature(5_000, 1), "categories": feature(40, 3)}
    return JaggedBatch(batch).to(device)


def layer_of(
    backend: str, rule: str, device: torch.device, max_row_norm: float | None = None
) -> EmbeddingBags:
    torch.manual_seed(2)
    bags = EmbeddingBags(TABLES, backend).to(device)
    bags.update_rows(RowUpdateConfig(rule=rule, max_row_norm=max_row_norm))
    return bags


def step(bags: EmbeddingBags, batch: JaggedBatch, factor: float = 1.0) -> None:
    bags.begin_step(0.05)
    directions = torch.Generator().manual_seed(9)
    loss = torch.zeros((), device=bags.weight("item").device)
    for value in bags(batch).values():
        loss = loss + (value * torch.randn(value.shape, generator=directions).to(loss)).sum()
    loss = loss * factor
    if bags.may_move(loss):
        loss.backward()


def assert_close(ours: EmbeddingBags, theirs: EmbeddingBags) -> None:
    for name, value in theirs.state_dict().items():
        assert (ours.state_dict()[name] - value).norm() < TOLERANCE * value.norm(), name
    own = ours.update_state()
    for name, value in theirs.update_state().items():
        if not name.startswith("step/"):
            assert (own[name] - value).norm() <= 10 * TOLERANCE * value.norm(), name


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_rows_move_as_in_torch(cuda: torch.device, backend: str, rule: str, weighted: bool) -> None:
    ours, theirs = layer_of(backend, rule, cuda), layer_of("torch", rule, cuda)
    for seed in range(3):
        for bags in (ours, theirs):
            step(bags, random_batch(seed, cuda, weighted))
    assert_close(ours, theirs)


@pytest.mark.parametrize("rule", RULES)
def test_a_loss_that_is_not_finite_moves_nothing(
    cuda: torch.device, backend: str, rule: str
) -> None:
    bags = layer_of(backend, rule, cuda)
    step(bags, random_batch(0, cuda))
    before = {name: value.clone() for name, value in bags.state_dict().items()}
    state = {name: value.clone() for name, value in bags.update_state().items()}
    step(bags, random_batch(1, cuda), torch.nan)
    assert all(torch.equal(value, before[name]) for name, value in bags.state_dict().items())
    assert all(torch.equal(value, state[name]) for name, value in bags.update_state().items())


def test_rows_are_clipped_as_in_torch(cuda: torch.device) -> None:
    ours, theirs = (layer_of(name, "sgd", cuda, 0.3) for name in ("triton", "torch"))
    for bags in (ours, theirs):
        step(bags, random_batch(0, cuda))
    assert_close(ours, theirs)


@pytest.mark.parametrize("rule", RULES[1:])
def test_state_goes_on_in_another_backend(cuda: torch.device, backend: str, rule: str) -> None:
    for source, target in ((backend, "torch"), ("torch", backend)):
        first, second = layer_of(source, rule, cuda), layer_of(target, rule, cuda)
        step(first, random_batch(0, cuda))
        second.load_state_dict(first.state_dict())
        second.load_update_state(first.update_state())
        for bags in (first, second):
            step(bags, random_batch(1, cuda))
        assert_close(second, first)


def test_our_kernels_repeat_their_bits(cuda: torch.device) -> None:
    digests = []
    for _ in range(5):
        bags = layer_of("triton", "adam", cuda)
        for seed in range(3):
            step(bags, random_batch(seed, cuda))
        digests.append({name: value.clone() for name, value in bags.state_dict().items()})
    for name, value in digests[0].items():
        assert all(torch.equal(other[name], value) for other in digests[1:])
