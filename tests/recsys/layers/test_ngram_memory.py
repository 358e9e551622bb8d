import pytest
import torch

from recsys.data.batch import Jagged, JaggedBatch
from recsys.layers.embedding.collection import EmbeddingBags, TableConfig
from recsys.layers.ngram_memory import NgramMemory, hashed_feature, hashed_rows

KNOWN = [[500216, 358351], [939330, 461673], [375343, 842636], [747342, 128967], [222921, 141483]]


def memory(orders: tuple[int, ...]) -> NgramMemory:
    torch.manual_seed(0)
    return NgramMemory(8, orders, num_rows=1_000, backend="torch")


def test_the_same_run_of_ids_is_found_wherever_it_ends() -> None:
    ids = torch.tensor([[-1, 5, 7, 9, 2], [-1, 8, 5, 7, 9]])
    for order in (1, 2, 3):
        found = memory((order,)).look_up(ids)
        assert torch.equal(found[0, 3], found[1, 4])  # behind 5, 7, 9
        assert not torch.equal(found[0, 3], found[0, 4])


def test_a_longer_gram_also_hangs_on_what_came_before() -> None:
    ids = torch.tensor([[-1, 5, 7], [-1, 6, 7]])
    assert torch.equal(*memory((1,)).look_up(ids)[:, 2])
    assert not torch.equal(*memory((2,)).look_up(ids)[:, 2])


def test_what_follows_changes_nothing() -> None:
    model = memory((1, 2, 3))
    whole = model.look_up(torch.tensor([[-1, 5, 7, 9]]))
    assert torch.equal(model.look_up(torch.tensor([[-1, 5, 7]])), whole[:, :3])


def test_the_gate_lets_through_by_what_the_state_asks_for() -> None:
    model = memory((1,))
    found, state = torch.randn(1, 4, 8), torch.randn(1, 4, 8)
    with torch.no_grad():
        taken = model(state, found) - state
        full = model.value(found)
    share = taken / full
    assert torch.allclose(share, share[..., :1].expand_as(share), atol=1e-4)  # one gate a place
    assert bool(((share > 0) & (share < 1)).all())


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
    ids = torch.tensor([0, 1, -1, -(2**63), 2**63 - 1])
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
        hashed_rows(torch.tensor([1]), 1, 2)
