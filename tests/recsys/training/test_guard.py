"""Steps that are not finite move nothing, and a good one ends their streak."""

import math

import pytest
import torch
from torch.optim import AdamW

from recsys.training.captured import BadSteps, StepGuard


def guard_of(*, waits: bool) -> StepGuard:
    weight = torch.nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    guard = StepGuard(AdamW([weight], fused=True), torch.device("cpu"))
    guard.waits = waits  # as on a GPU, whose path runs on a CPU too
    return guard


@pytest.mark.parametrize("waits", [True, False])
def test_a_good_step_ends_a_streak_of_bad_ones(waits: bool) -> None:
    guard = guard_of(waits=waits)
    for loss in (math.nan, 1.0, math.inf, math.nan, 1.0, math.nan):
        guard.step(torch.tensor(loss))
    assert guard.read() == BadSteps(total=4, longest=2)
    assert guard.in_a_row == 1
