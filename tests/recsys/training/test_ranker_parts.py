"""A ranker's step in parts has the gradient of the whole step."""

import pytest
import torch
from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch
from recsys.models.item_tower import ItemCatalogue
from recsys.models.ranker.batch import Candidates
from recsys.models.ranker.config import RankerConfig, RankerInputs
from recsys.models.ranker.model import Ranker
from recsys.training.passes import RankerFitConfig
from recsys.training.ranker_fit import ranker_loss
from recsys.training.ranking_examples import Outcomes, RankingExamples, labels_of
from recsys.training.ranks import ALONE, Ranks
from recsys.training.shown_lists import shown_losses
from tests.recsys.training.parts import two_parts

NUM_ITEMS, NUM_QUERIES, LENGTH = 30, 40, 12
CPU = torch.device("cpu")
CONFIG = RankerFitConfig(num_candidates=LENGTH, num_hard=4, num_random=4, batch_size=21)
EVERYONE = torch.arange(NUM_QUERIES)


def examples() -> RankingExamples:
    generator = torch.Generator().manual_seed(4)
    rows = torch.stack(
        [torch.randperm(NUM_ITEMS - 1, generator=generator)[:LENGTH] + 1 for _ in EVERYONE]
    )
    targets = Jagged.one_each(rows[:, 5])
    # Likes are few, so the two parts have different numbers of them.
    values = torch.where(EVERYONE % 5 == 0, 5.0, 1.0)
    labels = labels_of(rows, targets, Outcomes.of_values(values), ("next", "like"), 4.0)
    features = torch.randn(NUM_QUERIES, LENGTH, 2, generator=generator)
    slots = torch.arange(LENGTH).expand(NUM_QUERIES, -1).clone()
    slots[::3, 7:] = -1
    queries = JaggedBatch({"history": Jagged.one_each(rows[:, 0])})
    return RankingExamples(queries, targets, Candidates(rows, features), labels, slots)


def ranker() -> Ranker:
    torch.manual_seed(0)
    inputs = RankerInputs(
        num_item_rows=NUM_ITEMS,
        tasks=("next", "like"),
        candidate_dense=("score", "other"),
        base_feature="score",
        num_slots=LENGTH,
    )
    config = RankerConfig(
        trunk="dense", embedding_dim=8, key_dim=8, hidden_dim=8, tile_rows=32, backend="torch"
    )
    # Without dropout, which each part would draw for itself.
    return Ranker(config, inputs, ItemCatalogue.empty(NUM_ITEMS)).eval()


def gradients(loss: str, ranks: Ranks) -> list[Tensor]:
    model, found = ranker(), examples()
    if loss == "events":
        loss_at = ranker_loss(model, found, EVERYONE, CONFIG, 0, CPU, ranks)
    else:
        loss_at = shown_losses(model, found, EVERYONE, CONFIG, 0, CPU, ranks)
    loss_at(3).backward()
    return [torch.zeros(1) if one.grad is None else one.grad for one in model.parameters()]


@pytest.mark.parametrize("loss", ["events", "shown lists"])
def test_the_mean_over_parts_is_the_gradient_of_the_whole_step(loss: str) -> None:
    first_round, second_round = two_parts()
    for rank in first_round:
        gradients(loss, rank)
    parts = [gradients(loss, rank) for rank in second_round]
    whole = gradients(loss, ALONE)
    assert any(float(one.abs().max()) > 1e-4 for one in whole)
    for expected, first, second in zip(whole, *parts, strict=True):
        torch.testing.assert_close((first + second) / 2, expected, rtol=1e-4, atol=1e-6)
