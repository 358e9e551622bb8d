"""Rows for new ids: against a slow vocabulary in a dictionary, and with the tables they name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch
from recsys.layers.embedding import growing_vocabulary
from recsys.layers.embedding.collection import EmbeddingBags, RowUpdateConfig, TableConfig
from recsys.layers.embedding.growing_vocabulary import (
    GrowingVocabulary,
    VocabularyConfig,
    hashed_feature,
    hashed_rows,
    reset_rows,
    rows_from_content,
)
from recsys.training.optim import AdamWConfig, adamw, reset_optimizer_rows

LOWEST, HIGHEST = -(2**63), 2**63 - 1
KNOWN = [[500216, 358351], [939330, 461673], [375343, 842636], [747342, 128967], [222921, 141483]]
SOME_IDS = st.one_of(st.integers(-6, 12), st.sampled_from([LOWEST, HIGHEST, 10**15]))
BATCHES = st.lists(st.lists(SOME_IDS, max_size=12), max_size=12)


def vocabulary_of(num_rows: int, **settings: object) -> GrowingVocabulary:
    return GrowingVocabulary(VocabularyConfig(num_rows=num_rows, **settings))


def ids_of(*ids: int) -> Tensor:
    return torch.tensor(ids, dtype=torch.int64)


class SlowVocabulary:
    """The rule word by word: one dictionary, one id at a time."""

    def __init__(self, num_rows: int, halve_every: int | None) -> None:
        self.rows: dict[int, int] = {}
        self.uses: dict[int, int] = {}
        self.last: dict[int, int] = {}
        self.free = list(range(1, num_rows))
        self.halve_every, self.number = halve_every, 0

    def admit(self, batch: list[int]) -> tuple[list[int], list[int], set[int]]:
        new = [one for one in dict.fromkeys(batch) if one not in self.rows]
        evicted, given_rows = set(), []
        while len(self.free) < len(new):
            out = [one for one in self.rows if one not in batch]
            if not out:
                break
            worst = min(out, key=lambda one: (self.uses[one], self.last[one], self.rows[one]))
            self.free.append(self.rows.pop(worst))
            evicted.add(worst)
        self.free.sort()
        for one in new[: len(self.free)]:
            self.rows[one], self.uses[one] = self.free.pop(0), 0
            given_rows.append(self.rows[one])
        for one in batch:
            if one in self.rows:
                self.uses[one] += 1
                self.last[one] = self.number
        self.number += 1
        if self.halve_every and self.number % self.halve_every == 0:
            self.uses = {one: (count + 1) // 2 for one, count in self.uses.items()}
        return [self.rows.get(one, 0) for one in batch], given_rows, evicted


@settings(max_examples=150, deadline=None)
@given(BATCHES, st.integers(2, 9), st.sampled_from([None, 1, 3]), st.integers(0, 5))
def test_rows_are_those_of_the_slow_truth(
    batches: list[list[int]], num_rows: int, halve_every: int | None, recent: int
) -> None:
    most = growing_vocabulary.MAX_RECENT
    growing_vocabulary.MAX_RECENT = recent
    try:
        fast = vocabulary_of(num_rows, halve_every=halve_every)
        slow = SlowVocabulary(num_rows, halve_every)
        for batch in batches:
            admitted = fast.admit(ids_of(*batch))
            rows, new_rows, evicted = slow.admit(batch)
            assert admitted.rows.tolist() == rows
            assert admitted.new_rows.tolist() == new_rows
            assert set(admitted.evicted_ids.tolist()) == evicted
            assert fast.rows_of(admitted.new_ids).tolist() == new_rows
            assert fast.rows_of(admitted.evicted_ids).eq(0).all()
            everybody = ids_of(*slow.rows)
            assert fast.rows_of(everybody).tolist() == list(slow.rows.values())
            assert len(fast) == len(slow.rows)
    finally:
        growing_vocabulary.MAX_RECENT = most


@settings(max_examples=40, deadline=None)
@given(BATCHES, st.integers(0, 12), st.sampled_from([0.0, 0.4]))
def test_a_saved_vocabulary_goes_on_as_the_one_that_never_stopped(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[int]], stop: int, share: float
) -> None:
    folder = tmp_path_factory.mktemp("vocabulary")
    whole = vocabulary_of(6, halve_every=4, evict_share=share)
    stopped = vocabulary_of(6, halve_every=4, evict_share=share)
    for number, batch in enumerate(batches):
        if number == stop:
            stopped.save(folder / "vocabulary.safetensors")
            stopped = GrowingVocabulary.load(folder / "vocabulary.safetensors")
        one, two = whole.admit(ids_of(*batch)), stopped.admit(ids_of(*batch))
        assert all(torch.equal(left, right) for left, right in zip(one, two, strict=True))
    for name, vocabulary in (("one", whole), ("two", stopped)):
        vocabulary.save(folder / name)
    assert (folder / "one").read_bytes() == (folder / "two").read_bytes()


def test_live_rows_never_collide_and_row_0_is_nobodys() -> None:
    vocabulary = vocabulary_of(500, evict_share=0.05)
    generator = torch.Generator().manual_seed(0)
    for _ in range(40):
        ids = (torch.rand(300, generator=generator) ** 4 * 5_000).long() - 2_000
        admitted = vocabulary.admit(ids)
        pairs = torch.stack([ids, admitted.rows], dim=1).unique(dim=0)
        assert len(pairs) == len(ids.unique()) == len(admitted.rows.unique())
        assert (admitted.rows > 0).all()
        assert len(vocabulary) < 500


def test_the_least_used_goes_then_the_longest_unused_then_the_lowest_row() -> None:
    vocabulary = vocabulary_of(5)
    vocabulary.admit(ids_of(10, 10, 20, 30, 40))
    vocabulary.admit(ids_of(30))
    vocabulary.admit(ids_of(20))
    # Uses: 10, 20 and 30 twice, 40 once; 10 was seen first, 30 before 20.
    assert vocabulary.admit(ids_of(50)).evicted_ids.tolist() == [40]
    assert vocabulary.admit(ids_of(50)).evicted_ids.tolist() == []
    assert vocabulary.admit(ids_of(60, 60, 60)).evicted_ids.tolist() == [10]
    assert vocabulary.admit(ids_of(70, 70, 70)).evicted_ids.tolist() == [30]
    assert vocabulary.admit(ids_of(80)).evicted_ids.tolist() == [20]


def test_a_batch_with_more_new_ids_than_rows_keeps_the_first_ones() -> None:
    vocabulary = vocabulary_of(4)
    admitted = vocabulary.admit(ids_of(9, 8, 8, 7, 6, 5))
    assert admitted.rows.tolist() == [1, 2, 2, 3, 0, 0]
    again = vocabulary.admit(ids_of(7, 4, 3, 2))
    assert again.rows.tolist() == [3, 1, 2, 0], "7 is of the batch and stays"


def test_halving_lets_what_was_popular_once_go() -> None:
    frozen, halved = vocabulary_of(3), vocabulary_of(3, halve_every=2)
    for vocabulary in (frozen, halved):
        vocabulary.admit(ids_of(*[1] * 20))
        for _ in range(12):
            vocabulary.admit(ids_of(2))
    assert frozen.admit(ids_of(3)).evicted_ids.tolist() == [2]
    assert halved.admit(ids_of(3)).evicted_ids.tolist() == [1]


def test_a_share_is_freed_at_once() -> None:
    vocabulary = vocabulary_of(11, evict_share=0.4)
    vocabulary.admit(torch.arange(10))
    assert vocabulary.admit(ids_of(100)).evicted_ids.tolist() == [0, 1, 2, 3]
    assert vocabulary.admit(ids_of(101, 102, 103)).evicted_ids.tolist() == []
    assert vocabulary.rows_of(ids_of(0, 4, 101, 102, 103)).tolist() == [0, 5, 2, 3, 4]


@pytest.mark.parametrize(
    "change", [{"uses": [0, 1, 1]}, {"ids": [0, 5, 5], "uses": [0, 1, 1]}, {"uses": [1, 1, 0]}]
)
def test_a_damaged_file_is_refused(change: dict[str, list[int]], tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.safetensors"
    vocabulary = vocabulary_of(4)
    vocabulary.admit(ids_of(3, 4))
    vocabulary.save(path)
    tensors = load_file(path)
    size = 4 if "ids" in change or change["uses"][0] else 3
    for name, values in change.items():
        tensors[name] = torch.tensor([*values, *[0] * (size - 3)])
    save_file(tensors, path, {"config": '{"num_rows": 4}'})
    with pytest.raises(ValueError, match=r"does not have its 4 int64 rows|is damaged"):
        GrowingVocabulary.load(path)
    save_file({"x": torch.ones(1)}, path)
    with pytest.raises(ValueError, match="holds no growing vocabulary"):
        GrowingVocabulary.load(path)


def test_settings_out_of_range_are_refused() -> None:
    for setting in ({"num_rows": 1}, {"halve_every": 0}, {"evict_share": 1.0}):
        with pytest.raises(ValueError, match=next(iter(setting))):
            VocabularyConfig(**{"num_rows": 4, **setting})


def layer_of(backend: str) -> EmbeddingBags:
    torch.manual_seed(0)
    tables = [TableConfig(name="item", num_rows=5, embedding_dim=4, features=("item",))]
    return EmbeddingBags(tables, backend)


def one_step(bags: EmbeddingBags, rows: Tensor, optimizer: torch.optim.Optimizer | None) -> None:
    if optimizer is None:
        bags.begin_step(0.1)
    pooled = bags(JaggedBatch({"item": Jagged.one_each(rows)}))["item"]
    loss = (pooled * torch.arange(1.0, 5)).sum()
    if optimizer is None:
        bags.may_move(loss)
    loss.backward()
    if optimizer is not None:
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("kind", ["torch", "triton", "dense"])
def test_a_row_that_changes_hands_starts_afresh(kind: str) -> None:
    bags = layer_of("torch" if kind == "dense" else kind)
    optimizer = adamw(bags, AdamWConfig(tables="dense")) if kind == "dense" else None
    if optimizer is None:
        bags.update_rows(RowUpdateConfig(rule="adam"))
    else:
        optimizer.param_groups[0]["lr"] = 0.1
    vocabulary = vocabulary_of(5)
    for _ in range(3):
        one_step(bags, vocabulary.admit(ids_of(1, 2, 3, 3, 4)).rows, optimizer)
    admitted = vocabulary.admit(ids_of(99))
    assert (admitted.new_rows.tolist(), admitted.evicted_ids.tolist()) == ([1], [1])

    weight, kept = bags.weight("item"), bags.weight("item").detach().clone()
    reset_rows(bags, "item", admitted.new_rows)
    states = (
        [value for name, value in bags.update_state().items() if not name.startswith("step")]
        if optimizer is None
        else [optimizer.state[weight]["exp_avg"], optimizer.state[weight]["exp_avg_sq"]]
    )
    if optimizer is not None:
        assert all(state[1].any() for state in states), "the layer does not know the optimizer"
        reset_optimizer_rows(optimizer, weight, admitted.new_rows)
    torch.testing.assert_close(weight[1].detach(), kept[2:].mean(0))
    assert torch.equal(weight[[0, 2, 3, 4]].detach(), kept[[0, 2, 3, 4]])
    for state in states:
        assert not state[1].any()
        assert state[2:].any(dim=1).all()
    reset_rows(bags, "item", admitted.new_rows, torch.full((1, 4), 7.0))
    assert weight[1].tolist() == [7.0] * 4
    one_step(bags, admitted.rows, optimizer)
    assert (weight[1] < 7).all(), "and it learns"


def test_rows_from_content_find_a_linear_truth() -> None:
    generator = torch.Generator().manual_seed(1)
    content = torch.randn(200, 6, generator=generator)
    truth = content @ torch.randn(6, 4, generator=generator) + 3
    new = rows_from_content(content[:150], truth[:150], content[150:], ridge=1e-9)
    torch.testing.assert_close(new, truth[150:], atol=1e-4, rtol=1e-4)
    far = rows_from_content(content[:150], truth[:150], content[150:], ridge=1e9)
    torch.testing.assert_close(far, truth[:150].mean(0).expand(50, 4), atol=1e-3, rtol=1e-3)
    assert torch.equal(rows_from_content(content[:0], truth[:0], content[:2]), torch.zeros(2, 4))


def test_hashes_are_even_independent_and_never_row_0() -> None:
    ids = torch.arange(-50_000, 50_000)
    rows = hashed_rows(ids, 101, 3)
    assert rows.shape == (100_000, 3)
    assert (rows.min(), rows.max()) == (1, 100)
    for column in rows.T:
        counts = torch.bincount(column, minlength=101)[1:].double()
        # 99 degrees of freedom: 148 is the 99.9% point.
        assert ((counts - 1_000) ** 2 / 1_000).sum() < 148
    pairs = torch.bincount((rows[:, 0] - 1) * 100 + rows[:, 1] - 1, minlength=10_000).double()
    # 9999 degrees of freedom: standard deviation 141.
    assert abs(((pairs - 10) ** 2 / 10).sum() - 9_999) < 5 * 141
    assert not torch.equal(hashed_rows(ids, 101, 3, seed=1), rows)


def test_hashes_stay_what_they_are() -> None:
    """Known answers: saved tables depend on them."""
    ids = ids_of(0, 1, -1, LOWEST, HIGHEST)
    assert hashed_rows(ids, 1_000_003, 2).tolist() == KNOWN


def test_ids_collide_only_where_all_hashes_do() -> None:
    rows = hashed_rows(torch.arange(20_000), 2_001, 2)
    alone = len(rows[:, 0].unique())
    # Expected pairs that share both rows: 20,000^2 / 2 / 2,000^2 = 50.
    together = 20_000 - len(rows.unique(dim=0))
    assert alone <= 2_000
    assert together < 100


@pytest.mark.parametrize("pooling", ["sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
def test_hashed_features_pool_as_the_mean_of_their_rows(pooling: str, weighted: bool) -> None:
    table = TableConfig(
        name="user", num_rows=50, embedding_dim=4, features=("user",), pooling=pooling
    )
    bags = EmbeddingBags([table], "torch")
    ids = Jagged.from_lists([[10**12, -7], [], [5]])
    if weighted:
        ids = ids._replace(weights=torch.tensor([0.5, 1.5, 3.0]))
    found = bags(JaggedBatch({"user": hashed_feature(ids, 50, 3)}))["user"]
    vectors = bags.weight("user")[hashed_rows(ids.values, 50, 3)].mean(1)
    weights = torch.ones(3) if ids.weights is None else ids.weights
    first = (vectors[:2] * weights[:2, None]).sum(0)
    last = vectors[2] * weights[2]
    if pooling == "mean":
        first, last = first / weights[:2].sum(), last / weights[2]
    torch.testing.assert_close(found, torch.stack([first, torch.zeros(4), last]))


def test_hashing_into_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="num_rows >= 2 and num_hashes >= 1, got 1 and 2"):
        hashed_rows(ids_of(1), 1, 2)
