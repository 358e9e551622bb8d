import torch

from recsys.layers.ngram_memory import NgramMemory


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
