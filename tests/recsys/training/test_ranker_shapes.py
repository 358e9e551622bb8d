"""A ranker's step of one shape has the loss and gradients of the step as it was."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch, cut_offsets
from recsys.models.ranker.config import RankerConfig, RankerInputs
from recsys.models.ranker.model import Ranker
from recsys.models.ranker.network import Candidates
from recsys.training.passes import RankerFitConfig
from recsys.training.ranker_fit import StepLosses, fixed_loss, has_one_shape, settling
from recsys.training.ranking_examples import Outcomes, RankingExamples, labels_of
from tests.recsys.testing.catalogues import drawn_catalogue

NUM_ITEMS, NUM_QUERIES, LENGTH, MAX_HISTORY = 30, 40, 12, 5
CPU = torch.device("cpu")
EVERYONE = torch.arange(NUM_QUERIES)
INPUTS = RankerInputs(
    num_item_rows=NUM_ITEMS,
    tasks=("next", "like"),
    num_categories=4,
    user_features={"age": 6},
    candidate_dense=("score", "other", "third"),
    base_feature="score",
)
CONFIG = RankerConfig(
    trunk="sparse",
    embedding_dim=8,
    key_dim=8,
    hidden_dim=8,
    max_history=MAX_HISTORY,
    num_experts=4,
    dropout=0.0,
    id_dropout=0.0,
    tile_rows=32,
    backend="torch",
)
TRAINING = RankerFitConfig(num_candidates=LENGTH, num_hard=4, num_random=5, batch_size=16)


CATALOGUE = drawn_catalogue(NUM_ITEMS)


def examples() -> RankingExamples:
    """Histories of none to eight events, one of an item without a row; some lists are short."""
    generator = torch.Generator().manual_seed(4)
    rows = torch.stack(
        [torch.randperm(NUM_ITEMS - 1, generator=generator)[:LENGTH] + 1 for _ in EVERYONE]
    )
    targets = Jagged.one_each(rows[:, 5])
    rows[::4, 9:] = 0
    values = torch.where(EVERYONE % 5 == 0, 5.0, 1.0)
    labels = labels_of(rows, targets, Outcomes.of_values(values), ("next", "like"), 4.0)
    features = torch.randn(NUM_QUERIES, LENGTH, 3, generator=generator)
    lengths = EVERYONE % 9
    events = torch.randint(1, NUM_ITEMS, (int(lengths.sum()),), generator=generator)
    events[7] = NUM_ITEMS + 3
    queries = JaggedBatch(
        {"history": Jagged(events, cut_offsets(lengths)), "user.age": Jagged.one_each(EVERYONE % 6)}
    )
    return RankingExamples(queries, targets, Candidates(rows, features), labels)


def losses_of(model: Ranker, training: RankerFitConfig = TRAINING) -> StepLosses:
    return StepLosses(model, examples(), EVERYONE, training, 0, CPU)


def gradients(model: Ranker, loss: Tensor) -> Tensor:
    model.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    return torch.cat([torch.zeros(1) if one.grad is None else one.grad.flatten()
                      for one in model.parameters()])  # fmt: skip


@pytest.mark.parametrize("num_random", [5, 6])
@pytest.mark.parametrize("trunk", ["sparse", "dense"])
def test_the_loss_is_that_of_the_step_as_it_was(trunk: str, num_random: int) -> None:
    """Also where the numbers of a step are odd, so that half an integer is left over."""
    torch.manual_seed(0)
    config = replace(CONFIG, trunk=trunk)  # type: ignore[arg-type]
    model = Ranker(config, INPUTS, CATALOGUE, torch.ones(NUM_ITEMS))
    for head in model.heads.linear(2):
        torch.nn.init.normal_(head.weight)
    if trunk == "sparse":
        model.trunk.body.router.moves_by_batch = False  # type: ignore[union-attr, assignment]
    losses = losses_of(model, replace(TRAINING, num_random=num_random, batch_size=15))
    for step in range(6):
        inputs = losses.shape.inputs(*losses.draw(step))
        assert inputs.dtype == torch.int64
        expected, found = losses(step), losses.of_inputs(inputs)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        by_step, by_shape = gradients(model, losses(step)), gradients(model, found)
        assert float(by_step.abs().max()) > 1e-3
        torch.testing.assert_close(by_shape, by_step, rtol=1e-4, atol=1e-6)


def test_balanced_experts_are_settled_before_each_step_in_both_ways() -> None:
    def trained(*, by_shape: bool) -> Tensor:
        torch.manual_seed(0)
        model = Ranker(CONFIG, INPUTS, CATALOGUE, torch.ones(NUM_ITEMS))
        losses = losses_of(model)
        settle = settling(model, examples().candidates.item_rows, CPU)
        loss = fixed_loss(losses, losses, settle)
        for step in range(3):
            inputs = loss.inputs_at(step)
            if by_shape:
                loss.loss_of(inputs)
            else:
                settle(1)
        bias: Tensor = model.trunk.body.router.bias  # type: ignore[union-attr, assignment]
        return bias

    assert float(trained(by_shape=True).abs().max()) > 0
    torch.testing.assert_close(trained(by_shape=True), trained(by_shape=False))


def test_steps_that_need_a_look_at_the_data_have_no_one_shape() -> None:
    for num_rows, is_shaped in ((NUM_ITEMS, True), (NUM_ITEMS + 1, False)):
        model = Ranker(CONFIG, INPUTS, drawn_catalogue(num_rows))
        assert has_one_shape(model, losses_of(model)) == is_shaped
