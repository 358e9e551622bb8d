"""Sparse mixtures of experts: routing, and experts against a loop."""

import pytest
import torch

from recsys.layers.moe.experts import Experts, SparseMoe, SparseMoeConfig
from recsys.layers.moe.router import BiasedRouter, expert_use
from tests.recsys.kernels.test_routed_experts import choices
from tests.recsys.testing.experts import loop_over_experts


def skewed_rows(num_rows: int, dim: int) -> torch.Tensor:
    """Rows around one direction, so that scores alone send nearly all to the same experts."""
    return torch.randn(num_rows, dim) * 0.5 + torch.linspace(-1, 1, dim) * 2


def test_biases_balance_rows_that_all_want_the_same_experts():
    torch.manual_seed(0)
    router = BiasedRouter(16, 8, 2)
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
    scores = router.scores(rows).softmax(1).gather(1, routing.experts)
    torch.testing.assert_close(routing.weights, scores / scores.sum(1, keepdim=True))
    assert not torch.equal(plain.experts, routing.experts)


def test_settled_biases_balance_rows_as_often_as_they_are_counted():
    torch.manual_seed(0)
    router, rows = BiasedRouter(16, 8, 2), skewed_rows(500, 16)
    counts = (1000 / torch.arange(1, 501)).long().clamp(max=100)
    router.settle(rows, counts)
    served = rows.repeat_interleave(counts, dim=0)
    assert expert_use(router.eval()(served).experts, 8).max_violation <= 0.05
    before = router.bias.clone()
    router.settle(rows, counts)
    torch.testing.assert_close(router.bias, before, atol=0.05, rtol=0)


CASES = {
    "uneven": (513, 16, 3),
    "one row": (1, 3, 1),
    "all rows to two experts": (100, 8, 2),
    "no rows": (0, 4, 2),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("training", [True, False])
def test_experts_agree_with_the_loop_forward_and_backward(case, training):
    torch.manual_seed(1)
    num_rows, num_experts, top_k = CASES[case]
    rows = torch.randn(num_rows, 24, requires_grad=True)
    weights = torch.rand(num_rows, top_k, requires_grad=True)
    experts = choices(num_rows, num_experts, top_k, same=case.startswith("all"))
    layer = Experts(num_experts, 24, 32, 16).train(training)
    leaves = [rows, weights, layer.up, layer.down]
    true = loop_over_experts(rows, layer.up, layer.down, experts, weights)
    found = [
        [out, *torch.autograd.grad(out.square().sum(), leaves)]
        for out in (layer(rows, experts, weights), true)
    ]
    for ours, truth in zip(*found, strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("training", [True, False])
def test_low_precision_is_near_full_precision(dtype, training):
    torch.manual_seed(6)
    layer = SparseMoe(SparseMoeConfig(dim=24, hidden_dim=8, num_experts=8)).eval()
    rows = torch.randn(50, 24)
    full = layer(rows).output.detach()
    with torch.set_grad_enabled(training), torch.autocast("cpu", dtype=dtype):
        found = layer(rows).output
    assert found.dtype == dtype
    # Beside the largest number, two of whose rounding steps are the tolerance.
    error = (found.detach().float() - full).abs().max() / full.abs().max()
    assert float(error) < 2 * torch.finfo(dtype).eps
