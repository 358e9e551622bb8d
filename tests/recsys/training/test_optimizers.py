"""Optimizers, schedules and the guard of steps."""

import math

import pytest
import torch
from torch import nn
from torch.optim import AdamW

from recsys.layers.embedding.collection import EmbeddingBags, TableConfig
from recsys.training.captured import BadSteps, StepGuard
from recsys.training.optim import ADAM_LENGTH, adamw, clip_gradients, decay_groups, orthogonalised
from recsys.training.passes import AdamWConfig, ScheduleConfig, TrainingConfig, lr_at
from tests.recsys.testing.tensors import rounding

pytestmark = pytest.mark.numerics


def rates(num_steps, **settings):
    schedule = ScheduleConfig(learning_rate=1.0, **settings)
    return [lr_at(step, schedule, num_steps) for step in range(num_steps)]


def test_warm_up_rises_to_the_peak_and_decay_falls_from_it():
    assert rates(8, warmup_steps=4, decay="linear") == pytest.approx(
        [0.25, 0.5, 0.75, 1.0, 1.0, 0.75, 0.5, 0.25]
    )
    falling = rates(101, decay="cosine", final_share=0.2)
    assert falling[50] == pytest.approx(0.6, abs=0.01)
    assert falling[100] == pytest.approx(0.2, abs=0.01)


def test_matrices_decay_and_biases_norms_and_tables_do_not():
    model = nn.Module()
    table = TableConfig(name="item", num_rows=4, embedding_dim=2, features=("item",))
    model.bags = EmbeddingBags([table], "torch")
    model.positions = nn.Embedding(3, 2)
    model.linear = nn.Linear(2, 2)
    model.norm = nn.LayerNorm(2)
    model.frozen = nn.Linear(2, 2).requires_grad_(False)
    decayed, others = decay_groups(model, 0.1)
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    assert [id(one) for one in decayed["params"]] == [id(model.linear.weight)]
    wanted = [model.linear.bias, *model.norm.parameters(), *model.bags.parameters()]
    wanted.append(model.positions.weight)
    assert {id(one) for one in others["params"]} == {id(one) for one in wanted}


def test_clipping_scales_to_the_global_norm_and_returns_the_norm_before():
    first, second = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))
    idle = nn.Parameter(torch.zeros(1))

    def set_gradients():
        first.grad, second.grad = torch.tensor([3.0, 0.0]), torch.tensor([4.0])

    set_gradients()
    assert clip_gradients([first, second, idle], None).item() == pytest.approx(5.0)
    assert first.grad.tolist() == [3.0, 0.0]
    assert clip_gradients([first, second, idle], 1.0).item() == pytest.approx(5.0)
    assert first.grad.tolist() + second.grad.tolist() == pytest.approx([0.6, 0.0, 0.8])


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
    net, layer = nn.Module(), nn.Linear(4, 4)
    net.blocks = nn.ModuleList([layer])
    optimizer = adamw(net, AdamWConfig(matrices="orthogonal", weight_decay=0.1))
    for group in optimizer.param_groups:
        group["lr"] = 0.05
    wide = torch.randn(4, 4, generator=torch.Generator().manual_seed(2))
    before = layer.weight.detach().clone()
    # The same gradient again only makes the momentum longer, which turning takes away.
    for times in (1.0, 2.0):
        layer.weight.grad, layer.bias.grad = wide.clone(), torch.zeros(4)
        optimizer.step()
        turn = orthogonalised(times * wide[None])[0]
        before = before * (1 - 0.05 * 0.1) - 0.05 * ADAM_LENGTH * 2 * turn
        torch.testing.assert_close(layer.weight, before, atol=rounding(5 * 4), rtol=0)
    assert turn.square().mean().sqrt().item() * 2 == pytest.approx(1, rel=0.3)


@pytest.mark.parametrize("waits", [True, False])
def test_a_good_step_ends_a_streak_of_bad_ones(waits: bool) -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    guard = StepGuard(AdamW([weight], fused=True), torch.device("cpu"))
    guard.waits = waits  # as on a GPU, whose path runs on a CPU too
    for loss in (math.nan, 1.0, math.inf, math.nan, 1.0, math.nan):
        guard.step(torch.tensor(loss))
    assert guard.read() == BadSteps(total=4, longest=2)
    assert guard.in_a_row == 1


def test_a_refit_takes_the_chosen_passes_along_the_schedule_of_before():
    training = TrainingConfig(batch_size=10, max_epochs=10.0, warmup_share=0.1)
    before = training.for_examples(100)
    again = training.for_refit(50, (100, 150))
    # Half of 100 steps were best; half as many examples more make each pass half as long again.
    assert (before.num_steps, again.num_steps) == (100, 75)
    assert (again.schedule.decay_steps, again.schedule.warmup_steps) == (150, 15)
    rates = [lr_at(step, again.schedule, again.num_steps) for step in (15, 30, 60)]
    same = [lr_at(step, before.schedule, before.num_steps) for step in (10, 20, 40)]
    assert rates == same
    shorter = training.for_refit(50, (100, 150), share=0.4)
    assert (shorter.num_steps, shorter.schedule.decay_steps) == (30, 60)


def test_a_continued_refit_takes_its_own_passes_at_a_lower_rate():
    training = TrainingConfig(batch_size=10, max_epochs=10.0, refit_epochs=2.0, refit_rate=0.25)
    config = training.for_continued_refit(150)
    assert config.num_steps == 30
    assert config.schedule.learning_rate == 0.25 * training.schedule.learning_rate
    assert config.schedule.warmup_steps == 3
