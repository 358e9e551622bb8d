"""A ranker's training steps as CUDA graphs are those that are launched one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from recsys.fitting.spec import TrainingRun, run_training
from recsys.kernels.choice import without
from recsys.models.ranker.model import Ranker
from recsys.training.captured import CapturedStep
from recsys.training.ranker_fit import ranker_loss
from tests.gpu.test_kernel_choice import Losses
from tests.recsys.training.test_ranker_shapes import (
    CATALOGUE,
    CONFIG,
    EVERYONE,
    INPUTS,
    NUM_ITEMS,
    TRAINING,
    examples,
)

pytestmark = pytest.mark.gpu


def trained(device: torch.device) -> tuple[list[float], torch.Tensor]:
    """Train 120 steps without dropout: the losses that were logged, and the experts' biases."""
    torch.manual_seed(0)
    model = Ranker(CONFIG, INPUTS, CATALOGUE, torch.ones(NUM_ITEMS)).to(device)
    loss = ranker_loss(model, examples(), EVERYONE, TRAINING, 0, device)
    training = replace(TRAINING, precision="float32")
    run = TrainingRun(seed=0, device=device, curve=(losses := Losses()))
    config = replace(training.for_steps(120, 120), log_every=10)
    run_training(model, loss, training, config, run, None)
    bias: torch.Tensor = model.trunk.body.router.bias  # type: ignore[union-attr, assignment]
    return losses.found, bias.cpu()


def test_captured_steps_have_the_losses_of_launched_ones(
    cuda: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    replayed = []
    step = CapturedStep.step
    monkeypatch.setattr(
        CapturedStep,
        "step",
        lambda self, *a: replayed.append(found := step(self, *a)) or found,  # type: ignore[func-returns-value]
    )
    losses, bias = trained(cuda)
    assert len(replayed) == 120
    assert None not in replayed
    with without("captured_step"):
        expected, expected_bias = trained(cuda)
    assert len(replayed) == 120
    assert losses == pytest.approx(expected, rel=2e-2)
    assert losses[-1] < losses[0]
    torch.testing.assert_close(bias, expected_bias, rtol=0.1, atol=0.02)
