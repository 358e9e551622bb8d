"""What runs with the kernels gives what runs without them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from recsys.data.batch import JaggedBatch
from recsys.fitting.counted import fit_ease
from recsys.fitting.queries import EvaluationQueries, ModelInputs, RetrievalSettings
from recsys.fitting.sequence import fit_sequence
from recsys.fitting.spec import TrainingRun
from recsys.fitting.two_tower import fit_two_tower
from recsys.kernels.choice import without
from recsys.layers.moe.experts import SparseMoe, SparseMoeConfig
from recsys.models.configs import EaseWeightsConfig, TwoTowerConfig
from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.model import SequenceModel
from recsys.training.captured import CapturedStep, FixedShapeLoss, StepGuard
from recsys.training.passes import AdamWConfig, TrainingConfig
from tests.gpu.test_training_path import CATALOGUE, INPUTS, world

pytestmark = pytest.mark.gpu

BATCH = 32


def batch_of(num_users: int) -> JaggedBatch:
    sequences = world()
    last = sequences.offsets[2 : num_users + 2] - 1
    return sequences.queries(last, max_history=12)


def model_on(device: torch.device | str, **changes: object) -> SequenceModel:
    torch.manual_seed(1)
    config = SequenceConfig(embedding_dim=32, hidden_dim=64, max_length=12, **changes)  # type: ignore[arg-type]
    return SequenceModel(config, INPUTS, CATALOGUE).to(device).eval()


def loss_and_gradients(model: SequenceModel, device: torch.device) -> tuple[float, torch.Tensor]:
    loss = model.loss(model.labelled(batch_of(BATCH)).to(device))
    loss.backward()
    gradients = [one.grad.flatten() for one in model.parameters() if one.grad is not None]
    return float(loss.detach()), torch.cat(gradients).cpu()


@pytest.mark.parametrize("block", ["attention", "hstu"])
def test_a_sequence_model_with_and_without_kernels_and_on_a_cpu(
    cuda: torch.device, block: str
) -> None:
    with without("all"):
        plain = loss_and_gradients(model_on(cuda, block=block), cuda)
    found = loss_and_gradients(model_on(cuda, block=block), cuda)
    on_cpu = loss_and_gradients(model_on("cpu", block=block), torch.device("cpu"))
    for other in (plain, on_cpu):
        assert found[0] == pytest.approx(other[0], rel=1e-4)
        torch.testing.assert_close(found[1], other[1], rtol=1e-2, atol=1e-4)


def test_ease_on_a_gpu_keeps_the_weights_of_the_cpu(cuda: torch.device) -> None:
    inputs = ModelInputs(sequences=world(), catalogue=CATALOGUE, sizes=INPUTS)
    for exact in (200, 40):
        config = EaseWeightsConfig(l2=(20.0,), history_power=(0.0,), exact_items=exact)
        expected = fit_ease(inputs, config, "train", None).table
        found = fit_ease(inputs, config, "train", None, cuda).table
        dense = [
            torch.zeros(len(one.offsets) - 1, len(one.offsets) - 1).index_put(
                (torch.repeat_interleave(one.offsets.diff()), one.rows.long()), one.weights
            )
            for one in (expected, found)
        ]
        torch.testing.assert_close(dense[1], dense[0], rtol=1e-3, atol=1e-5)


def test_a_training_step_of_the_sequence_model_never_waits(cuda: torch.device) -> None:
    model = model_on(cuda).train()
    given = model.labelled(batch_of(BATCH))
    model.loss(given.to(cuda)).backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        model.loss(given.to(cuda)).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


class Losses:
    """A tracker that keeps the losses."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def log(self, step: int, **values: float) -> None:
        if "loss" in values:
            self.found.append(values["loss"])


def trained(
    model: str, device: torch.device, matrices: Any = "adam"
) -> tuple[list[float], Mapping[str, torch.Tensor]]:
    """Train 120 steps without dropout: the losses that were logged, and the weights."""
    inputs = ModelInputs(sequences=world(), catalogue=CATALOGUE, sizes=INPUTS)
    training = TrainingConfig(
        batch_size=16,
        max_steps=120,
        max_epochs=1000,
        precision="float32",
        optimizer=AdamWConfig(matrices=matrices),
    )
    run = TrainingRun(seed=2, device=device, curve=(losses := Losses()))
    queries = EvaluationQueries.of(inputs, "validation", RetrievalSettings())
    small: dict[str, Any] = {"embedding_dim": 32, "hidden_dim": 32, "dropout": 0.0}
    if model == "sequence":
        config = SequenceConfig(max_length=12, id_dropout=0.0, **small)
        fitted = fit_sequence(inputs, config, training, run, queries).model
    else:
        two = TwoTowerConfig(max_history=12, id_dropout=0.0, num_uniform_negatives=100, **small)
        fitted = fit_two_tower(inputs, two, training, run, queries).model
    return losses.found, {name: one.cpu() for name, one in fitted.state_dict().items()}


@pytest.mark.parametrize(
    ("model", "matrices"), [("sequence", "adam"), ("sequence", "orthogonal"), ("two_tower", "adam")]
)
def test_a_training_of_captured_steps_is_that_of_launched_ones(
    cuda: torch.device, model: str, matrices: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[CapturedStep] = []
    real = CapturedStep.__init__

    def note(self: CapturedStep, *arguments: Any) -> None:
        made.append(self)
        real(self, *arguments)

    monkeypatch.setattr(CapturedStep, "__init__", note)
    with without("captured_step"):
        expected, weights = trained(model, cuda, matrices)
    assert not made
    found, captured = trained(model, cuda, matrices)
    (step,) = made
    assert step._graph is not None
    assert not step.has_failed
    assert found == pytest.approx(expected, rel=1e-3)
    for name, one in weights.items():
        torch.testing.assert_close(captured[name], one, rtol=1e-2, atol=2e-3, msg=name)


def test_a_captured_step_draws_anew_and_skips_what_is_not_finite(cuda: torch.device) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)).to(cuda)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, fused=True)
    guard = StepGuard(optimizer, cuda)

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        return model(batch.float().view(4, 4)).square().mean() / (batch[0] != 9)

    loss = FixedShapeLoss(
        lambda step: torch.zeros(()),
        lambda step: None if step == 7 else torch.arange(16) + 9 * (step in (5, 8, 9)),
        loss_of,
    )
    captured = CapturedStep(loss, model, guard, optimizer, 1.0, nullcontext)
    seen, weights = [], []
    for step in range(12):
        numbers = captured.step(step, 0.0 if step < 10 else 0.1)
        assert (numbers is None) == (step == 7)
        if numbers is not None:
            seen.append(float(numbers[0]))
        weights.append(model[0].weight.detach().clone())
    assert [math.isfinite(one) for one in seen] == [step not in (5, 7, 8) for step in range(11)]
    finite = [one for one in seen if math.isfinite(one)]
    assert len(set(finite)) == len(finite)
    assert torch.equal(weights[9], weights[0])
    assert (weights[11] - weights[10]).abs().max() > 0.01
    assert guard.read() == (3, 2)


def test_a_mixture_of_experts_says_in_bfloat16_what_it_says_on_a_cpu(cuda: torch.device) -> None:
    torch.manual_seed(2)
    config = SparseMoeConfig(dim=64, hidden_dim=96, num_experts=16, top_k=2)
    layer = SparseMoe(config).eval()
    rows = torch.randn(3000, 64)
    expected = layer(rows)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        found = layer.to(cuda)(rows.to(cuda))
    same = (found.routing.experts.cpu() == expected.routing.experts).all(1)
    # Two scores so near that sums of another order swap them.
    assert float(same.float().mean()) > 0.99
    true = expected.output.detach()
    error = (found.output.detach().float().cpu() - true).abs()[same].max()
    assert float(error / true.abs().max()) < 2e-2
