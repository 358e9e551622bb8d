import pytest
import torch

from recsys.layers.moe.routing import (
    BiasedRouter,
    expert_use,
)
from tests.recsys.testing.ranking_worlds import routing_information


def skewed_rows(num_rows: int, dim: int) -> torch.Tensor:
    """Rows around one direction, so that scores alone send nearly all to the same experts."""
    return torch.randn(num_rows, dim) * 0.5 + torch.linspace(-1, 1, dim) * 2


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("scores", ["sigmoid", "softmax"])
def test_biases_balance_rows_that_all_want_the_same_experts(seed, scores):
    torch.manual_seed(seed)
    router = BiasedRouter(16, 8, 2, scores=scores)
    before = expert_use(router.eval()(skewed_rows(4096, 16)).experts, 8)
    router.train()
    for _ in range(400):
        router(skewed_rows(4096, 16))
    after = expert_use(router.eval()(skewed_rows(16_384, 16)).experts, 8)
    assert before.max_violation > 0.5
    assert after.max_violation <= 0.1
    assert after.dead_experts == 0


def test_the_bias_chooses_but_does_not_weigh():
    router = BiasedRouter(4, 3, 2).eval()
    rows = torch.randn(6, 4)
    plain = router(rows)
    router.bias.copy_(torch.tensor([5.0, 5.0, -5.0]))
    routing = router(rows)
    assert bool((routing.experts < 2).all())
    scores = torch.sigmoid(router.scores(rows)).gather(1, routing.experts)
    torch.testing.assert_close(routing.weights, scores / scores.sum(1, keepdim=True))
    assert not torch.equal(plain.experts, routing.experts)


@pytest.mark.parametrize("scores", ["sigmoid", "softmax"])
def test_settled_biases_balance_rows_as_often_as_they_are_counted(scores):
    torch.manual_seed(0)
    router, rows = BiasedRouter(16, 8, 2, scores=scores), skewed_rows(500, 16)
    counts = (1000 / torch.arange(1, 501)).long().clamp(max=100)
    router.settle(rows, counts)
    served = rows.repeat_interleave(counts, dim=0)
    assert expert_use(router.eval()(served).experts, 8).max_violation <= 0.05
    before = router.bias.clone()
    router.settle(rows, counts)
    torch.testing.assert_close(router.bias, before, atol=0.05, rtol=0)


@pytest.mark.parametrize("scores", ["sigmoid", "softmax"])
def test_certainty_sends_rows_that_cluster_to_one_expert(scores):
    """Four clusters, and a direction in which each spreads as far as they lie apart."""
    torch.manual_seed(3)
    clusters = torch.arange(800) % 4
    rows = 3 * torch.eye(4)[clusters]
    rows = torch.cat([rows + 0.3 * torch.randn(800, 4), 2 * torch.randn(800, 1)], dim=1)
    found = {}
    for weight in (0.0, 1.0):
        torch.manual_seed(0)
        router = BiasedRouter(5, 4, 1, scores=scores)
        router.certainty_weight = router.evenness_weight = weight
        optimizer = torch.optim.Adam(router.parameters(), lr=0.02)
        for _ in range(200):
            routing = router(rows)
            optimizer.zero_grad()
            # What would otherwise move nothing.
            (routing.loss + 0 * router.scores.weight.sum()).backward()
            optimizer.step()
        experts = router.eval()(rows).experts[:, 0]
        found[weight] = routing_information(experts, clusters)
    assert found[0.0] < 0.8
    assert found[1.0] > 0.95


def test_too_many_chosen_experts_are_refused():
    with pytest.raises(ValueError, match="top_k must be in"):
        BiasedRouter(4, 3, 4)
