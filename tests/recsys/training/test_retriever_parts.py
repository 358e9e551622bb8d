"""A retriever's step in parts has the gradient of the whole step, negatives included."""

import pytest
import torch
from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch, StepShare
from recsys.models.configs import TwoTowerConfig
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.model import SequenceModel
from recsys.models.two_tower import TwoTower
from tests.recsys.training.parts import WholeOfAStep, two_parts

NUM_ITEMS, DRAWS = 50, 8
SIZES = FeatureSizes(num_item_rows=NUM_ITEMS)
# Parts of 3 and 2 sequences with different numbers of labels.
LENGTHS = torch.tensor([7, 3, 2, 6, 5])


def history() -> Jagged:
    generator = torch.Generator().manual_seed(2)
    values = torch.randint(1, NUM_ITEMS, (int(LENGTHS.sum()),), generator=generator)
    return Jagged(values, torch.nn.functional.pad(LENGTHS.cumsum(0), (1, 0)))


def gradients(model: str, chosen: Tensor, share: StepShare) -> list[Tensor]:
    torch.manual_seed(0)
    counts = torch.arange(NUM_ITEMS)
    events = history().take(chosen)
    made: SequenceModel | TwoTower
    if model == "sequence":
        config = SequenceConfig(
            embedding_dim=8, hidden_dim=8, max_length=8, num_uniform_negatives=DRAWS,
            label_smoothing=0.1, backend="torch",
        )  # fmt: skip
        made = SequenceModel(config, SIZES, ItemCatalogue.empty(NUM_ITEMS), counts).eval()
        loss = made.loss(JaggedBatch({"history": events}), share=share)
    else:
        two_tower = TwoTowerConfig(
            embedding_dim=8, hidden_dim=8, num_uniform_negatives=DRAWS, backend="torch"
        )
        made = TwoTower(two_tower, SIZES, ItemCatalogue.empty(NUM_ITEMS), counts).eval()
        loss = made.loss(JaggedBatch({"history": events}), 1 + chosen * 7, share)
    loss.backward()  # type: ignore[no-untyped-call]
    return [torch.zeros(1) if one.grad is None else one.grad for one in made.parameters()]


@pytest.mark.parametrize("model", ["two_tower", "sequence"])
def test_the_mean_over_parts_is_the_gradient_of_the_whole_step(model: str) -> None:
    everyone = torch.arange(len(LENGTHS))
    whole = gradients(model, everyone, WholeOfAStep())
    first_round, second_round = two_parts()
    found = [
        [
            gradients(model, torch.from_numpy(rank.part(everyone.numpy())), rank.share(0, 0))
            for rank in ranks
        ]
        for ranks in (first_round, second_round)
    ]
    assert any(float(one.abs().max()) > 1e-4 for one in whole)
    for expected, first, second in zip(whole, *found[1], strict=True):
        torch.testing.assert_close((first + second) / 2, expected, rtol=1e-4, atol=1e-6)
