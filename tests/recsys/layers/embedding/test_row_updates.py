"""Three ways to move rows inside the backward, against each other and against torch's Adam."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from recsys.data.batch import Jagged, JaggedBatch
from recsys.layers.embedding.collection import EmbeddingBags, TableConfig
from recsys.layers.embedding.fbgemm_updates import row_updates_for
from recsys.layers.embedding.row_updates import RowUpdateConfig
from tests.recsys.testing.refusals import assert_refused

pytestmark = pytest.mark.numerics

TABLES = [
    TableConfig(name="item", num_rows=48, embedding_dim=8, features=("history", "item")),
    TableConfig(
        name="category", num_rows=6, embedding_dim=12, features=("categories",), pooling="mean"
    ),
]
# Float32 sums in another order, after three steps of at most 0.1 a weight.
TOLERANCE = {"atol": 2e-6, "rtol": 2e-6}
RULES = ("sgd", "rowwise_adagrad", "adam", "rowwise_adam")


def random_batch(seed: int, *, weighted: bool = False, num_examples: int = 16) -> JaggedBatch:
    generator = torch.Generator().manual_seed(seed)

    def feature(num_rows: int, longest: int) -> Jagged:
        lengths = torch.randint(0, longest + 1, (num_examples,), generator=generator)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        count = int(offsets[-1])
        values = torch.randint(0, num_rows, (count,), generator=generator)
        return Jagged(values, offsets, torch.rand(count, generator=generator) if weighted else None)

    return JaggedBatch(
        {"history": feature(40, 7), "item": feature(40, 1), "categories": feature(6, 3)}
    )


def layer_of(
    backend: str, rule: str, max_row_norm: float | None = None, device: torch.device | str = "cpu"
) -> EmbeddingBags:
    torch.manual_seed(2)
    bags = EmbeddingBags(TABLES, backend).to(device)
    config = RowUpdateConfig(rule=rule, max_row_norm=max_row_norm)
    bags.update_rows(row_updates_for(bags, config))
    return bags


def loss_of(bags: EmbeddingBags, batch: JaggedBatch) -> torch.Tensor:
    directions = torch.Generator().manual_seed(9)
    terms = [
        (value * torch.randn(value.shape, generator=directions).to(value)).sum()
        for value in bags(batch).values()
    ]
    return torch.stack(terms).sum()


def step(bags: EmbeddingBags, batch: JaggedBatch, factor: float = 1.0) -> None:
    bags.begin_step(0.1)
    loss = loss_of(bags, batch) * factor
    if bags.may_move(loss):
        loss.backward()


def backends(rule: str) -> list[str]:
    """FBGEMM has Adam on CUDA only."""
    return ["torch", *(["torchrec"] if rule in ("sgd", "rowwise_adagrad") else [])]


def copied(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in state.items()}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_backends_move_the_same_rows_alike(rule: str, weighted: bool) -> None:
    pytest.importorskip("fbgemm_gpu")
    moved = {}
    for backend in ("auto", *backends(rule)):
        bags = layer_of(backend, rule)
        for seed in range(3):
            step(bags, random_batch(seed, weighted=weighted))
        moved[backend] = (bags.state_dict(), bags.update_state())
    expected, state = moved["torch"]
    touched = torch.cat([random_batch(seed)["history"].values for seed in range(3)])
    before = layer_of("torch", rule).weight("item")
    changed = (expected["collection.embedding_bags.item.weight"] != before).any(1)
    assert changed[touched].all()
    assert not changed.all(), "rows outside the batches stay"
    for backend, (found, own) in moved.items():
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, **TOLERANCE, msg=f"{backend} {name}")
        for name in state:
            if not name.startswith("step/"):
                torch.testing.assert_close(own[name], state[name], **TOLERANCE)


@pytest.mark.parametrize("backend", ["auto", *backends("sgd")])
def test_an_id_outside_its_table_is_named_and_the_step_can_be_done_again(backend: str) -> None:
    bags, other = layer_of(backend, "rowwise_adagrad"), layer_of(backend, "rowwise_adagrad")
    good = random_batch(1)
    for bad in (-1, 48, 10**12):
        values = good["item"].values.clone()
        values[-1] = bad
        wrong = JaggedBatch({**good.features, "item": good["item"]._replace(values=values)})
        bags.begin_step(0.1)
        with pytest.raises(ValueError, match=rf"'item' has id {bad}; its table allows \[0, 48\)"):
            loss_of(bags, wrong)
    for one in (bags, other):
        step(one, good)
    for name, value in other.state_dict().items():
        assert torch.equal(bags.state_dict()[name], value)


def test_adam_of_rows_that_always_occur_is_torchs_adam() -> None:
    """Every row in every batch: the lazy kind and the dense kind are then one."""
    every = Jagged(torch.arange(40).repeat(2), torch.tensor([0, 40, 80]))
    few = Jagged(torch.arange(6).repeat(2), torch.tensor([0, 6, 12]))
    batch = JaggedBatch({"history": every, "item": every, "categories": few})
    by_rows = layer_of("torch", "adam")
    torch.manual_seed(2)
    dense = EmbeddingBags(TABLES, "torch")
    optimizer = torch.optim.Adam(dense.parameters(), lr=0.1)
    for _ in range(4):
        step(by_rows, batch)
        optimizer.zero_grad()
        loss_of(dense, batch).backward()
        optimizer.step()
    for name, value in dense.state_dict().items():
        torch.testing.assert_close(by_rows.state_dict()[name], value, **TOLERANCE)
    for name, parameter in dense.named_parameters():
        for slot in ("exp_avg", "exp_avg_sq", "step"):
            own = by_rows.update_state()[f"{slot}/{name}"]
            torch.testing.assert_close(own, optimizer.state[parameter][slot], **TOLERANCE)


@pytest.mark.parametrize(
    ("backend", "rule"), [(backend, rule) for rule in RULES for backend in backends(rule)]
)
def test_a_loss_that_is_not_finite_moves_nothing(backend: str, rule: str) -> None:
    if backend == "torchrec":
        pytest.importorskip("fbgemm_gpu")
    bags = layer_of(backend, rule)
    step(bags, random_batch(0))
    before = copied(bags.state_dict() | bags.update_state())
    for bad in (torch.nan, torch.inf):
        step(bags, random_batch(1), bad)
    for name, value in (bags.state_dict() | bags.update_state()).items():
        assert torch.equal(value, before[name]), name
    step(bags, random_batch(1))
    assert not torch.equal(bags.weight("item"), before["collection.embedding_bags.item.weight"])


def test_clipping_is_per_row() -> None:
    one, plain = layer_of("torch", "sgd", 0.5), layer_of("torch", "sgd")
    before = plain.weight("item").detach().clone()
    for bags in (one, plain):
        step(bags, random_batch(3))
    moved, free = (before - bags.weight("item").detach() for bags in (one, plain))
    longest = free.norm(dim=1)
    assert (longest > 0.05).any()
    torch.testing.assert_close(moved.norm(dim=1), longest.clamp(max=0.05), atol=1e-5, rtol=0)


@pytest.mark.parametrize("rule", ["rowwise_adagrad", "adam", "rowwise_adam"])
def test_weights_and_state_go_on_in_another_backend(rule: str) -> None:
    names = backends(rule)
    for source, target in zip(names, names[1:] + names[:1], strict=True):
        if "torchrec" in (source, target):
            pytest.importorskip("fbgemm_gpu")
        first, second = layer_of(source, rule), layer_of(target, rule)
        step(first, random_batch(0))
        second.load_state_dict(copied(first.state_dict()))
        second.load_update_state(copied(first.update_state()))
        assert second.weight("category").shape == (6, 12)
        for bags in (first, second):
            step(bags, random_batch(1))
        for name, value in first.state_dict().items():
            torch.testing.assert_close(second.state_dict()[name], value, **TOLERANCE)


def test_what_a_backend_cannot_do_and_state_of_another_rule_are_refused() -> None:
    pytest.importorskip("fbgemm_gpu")
    odd = TableConfig(name="item", num_rows=3, embedding_dim=6, features=("item",))
    wide = EmbeddingBags([odd], "torchrec")
    adam, other = layer_of("torch", "adam"), layer_of("torch", "rowwise_adam").update_state()
    moved = layer_of("torch", "adam")
    moved.double().float()
    moved.begin_step(0.1)
    assert_refused(
        {
            "does not clip rows": lambda: layer_of("torchrec", "sgd", 1.0),
            "'adam' on CUDA only": lambda: layer_of("torchrec", "adam"),
            r"multiples of 4, tables \['item'\]": lambda: row_updates_for(
                wide, RowUpdateConfig(rule="sgd")
            ),
            r"exp_avg_sq/.* of shape \(48, 8\), got \(48,\)": lambda: adam.load_update_state(other),
            "got nothing": lambda: adam.load_update_state({}),
            "'item' was moved or replaced": lambda: moved(random_batch(0)),
        }
    )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("backend", ["auto", *backends("sgd")])
def test_joined_results_are_the_same_and_move_the_same_rows(
    backend: str, pooling: str, weighted: bool
) -> None:
    tables = [TABLES[0], replace(TABLES[1], pooling=pooling)]
    batch = random_batch(3, weighted=weighted)
    directions = torch.randn(16, 28, generator=torch.Generator().manual_seed(9))
    found = []
    for by_hand in (True, False):
        torch.manual_seed(2)
        bags = EmbeddingBags(tables, backend)
        dense = bags.joined(batch)
        bags.update_rows(row_updates_for(bags, RowUpdateConfig(rule="rowwise_adagrad")))
        bags.begin_step(0.1)
        apart = bags(batch) if by_hand else {}
        joined = [apart[name] for name in ("history", "item", "categories") if by_hand]
        pooled = torch.cat(joined, dim=1) if by_hand else bags.joined(batch)
        torch.testing.assert_close(pooled, dense, **TOLERANCE)
        assert bags.may_move(pooled.sum())
        pooled.backward(directions)
        found.append([pooled.detach(), *bags.state_dict().values()])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_two_lookups_in_a_step_are_refused() -> None:
    bags = layer_of("torch", "adam")
    bags.begin_step(0.1)
    bags(random_batch(0))
    with pytest.raises(ValueError, match="looked up twice in one step"):
        bags(random_batch(1))
    with torch.no_grad():
        bags(random_batch(1))
    bags.begin_step(0.1)
    bags(random_batch(1))


def test_gradients_are_scaled_on_the_device() -> None:
    scaled, plain = layer_of("torch", "sgd"), layer_of("torch", "sgd")
    scaled.updates.grad_scale = torch.full((1,), 0.25)
    step(scaled, random_batch(0), 4.0)
    step(plain, random_batch(0))
    torch.testing.assert_close(scaled.weight("item"), plain.weight("item"), **TOLERANCE)
