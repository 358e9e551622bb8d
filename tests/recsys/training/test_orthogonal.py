import pytest
import torch
from torch import nn

from recsys.training.optim import (
    ADAM_LENGTH,
    AdamWConfig,
    adamw,
    orthogonalised,
)
from tests.recsys.testing.tensors import rounding

pytestmark = pytest.mark.numerics


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.out = nn.Linear(4, 2)

    def forward(self, rows):
        state = self.table(rows)
        for block in self.blocks:
            state = state + block(state).tanh()
        return self.out(state)


def trained(steps, matrices, net=None, optimizer=None, first=0):
    if net is None:
        torch.manual_seed(0)
        net = Net()
        optimizer = adamw(net, AdamWConfig(matrices=matrices, weight_decay=0.1))
        for group in optimizer.param_groups:
            group["lr"] = 0.05
    for step in range(first, first + steps):
        rows = torch.randint(5, (8,), generator=torch.Generator().manual_seed(step))
        (net(rows) - rows[:, None]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return net, optimizer


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 4, 32), (2, 48, 16)])
def test_singular_values_become_alike_and_directions_stay(shape):
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    turned = orthogonalised(matrices)
    values = torch.linalg.svdvals(turned)
    assert values.min() > 0.5
    assert values.max() < 1.3
    u, _, v = torch.linalg.svd(matrices, full_matrices=False)
    # The nearest matrix with singular values of one.
    cosine = (turned * (u @ v)).sum((1, 2)) / turned.norm(dim=(1, 2)) / (u @ v).norm(dim=(1, 2))
    assert cosine.min() > 0.97


def test_a_step_is_decay_and_the_momentum_turned_as_long_as_adams():
    net, optimizer = trained(0, "orthogonal")
    wide = torch.randn(4, 4, generator=torch.Generator().manual_seed(2))
    before = net.blocks[0].weight.detach().clone()
    # The same gradient again only makes the momentum longer, which turning takes away.
    for times in (1.0, 2.0):
        net.blocks[0].weight.grad = wide.clone()
        optimizer.step()
        turn = orthogonalised(times * wide[None])[0]
        before = before * (1 - 0.05 * 0.1) - 0.05 * ADAM_LENGTH * 2 * turn
        torch.testing.assert_close(net.blocks[0].weight, before, atol=rounding(5 * 4), rtol=0)
    assert turn.square().mean().sqrt().item() * 2 == pytest.approx(1, rel=0.3)
