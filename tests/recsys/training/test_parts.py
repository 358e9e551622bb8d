"""A step in parts has the gradient of the whole step."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from recsys.data.batch import Jagged, JaggedBatch, StepShare
from recsys.models.configs import TwoTowerConfig
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.model import SequenceModel
from recsys.models.two_tower import TwoTower
from recsys.training.ranks import ALONE, Ranks, Rows

SEED = 3


class WholeOfAStep(StepShare):
    """The whole step, with draws that its parts repeat."""

    def draws(self, device: torch.device) -> torch.Generator:
        return torch.Generator(device).manual_seed(SEED)


class PartOfAStep(WholeOfAStep):
    """Knows what an earlier round over all parts has left: counts and labels of each."""

    def __init__(self, left: list[list[Tensor]], rank: int, *, is_known: bool) -> None:
        self.left, self.rank, self.is_known, self.calls = left, rank, is_known, 0

    def _of_all(self, own: Tensor) -> list[Tensor]:
        call, self.calls = self.calls, self.calls + 1
        if not self.is_known:
            self.left[self.rank].append(own)
            return [own]
        return [of_rank[call] for of_rank in self.left]

    def all_labels(self, labels: Tensor) -> Tensor:
        return torch.cat(self._of_all(labels))

    def weight(self, labels: Tensor) -> Tensor | float:
        count = (labels > 0).sum(0).double()
        mean = torch.stack(self._of_all(count)).mean(0)
        return (count / mean.clamp(min=1e-9)).float()


class OneOfTwo(Ranks):
    """One of two ranks, without the other."""

    size = 2

    def __init__(self, rank: int, share: PartOfAStep) -> None:
        self.rank, self._share = rank, share

    def part(self, examples: Rows) -> Rows:
        return np.array_split(examples, self.size)[self.rank]

    def share(self, step: int, seed: int) -> PartOfAStep:
        return self._share


def two_parts() -> list[list[OneOfTwo]]:
    """Make the ranks of a first round, which leaves what the second one's need to know."""
    left: list[list[Tensor]] = [[], []]
    return [
        [OneOfTwo(rank, PartOfAStep(left, rank, is_known=known)) for rank in (0, 1)]
        for known in (False, True)
    ]


NUM_ITEMS, DRAWS = 50, 8
SIZES = FeatureSizes(num_item_rows=NUM_ITEMS)
# Parts of 3 and 2 sequences with different numbers of labels.
LENGTHS = torch.tensor([7, 3, 2, 6, 5])


def history() -> Jagged:
    generator = torch.Generator().manual_seed(2)
    values = torch.randint(1, NUM_ITEMS, (int(LENGTHS.sum()),), generator=generator)
    return Jagged(values, torch.nn.functional.pad(LENGTHS.cumsum(0), (1, 0)))


def retriever_gradients(model: str, chosen: Tensor, share: StepShare) -> list[Tensor]:
    torch.manual_seed(0)
    counts, known = torch.arange(NUM_ITEMS), ItemCatalogue.empty(NUM_ITEMS)
    small: dict[str, Any] = {
        "embedding_dim": 8, "hidden_dim": 8, "num_uniform_negatives": DRAWS, "backend": "torch"
    }  # fmt: skip
    batch = JaggedBatch({"history": history().take(chosen)})
    made: SequenceModel | TwoTower
    if model == "sequence":
        config = SequenceConfig(max_length=8, label_smoothing=0.1, **small)
        made = SequenceModel(config, SIZES, known, counts).eval()
        loss = made.loss(batch, share=share)
    else:
        made = TwoTower(TwoTowerConfig(**small), SIZES, known, counts).eval()
        loss = made.loss(batch, 1 + chosen * 7, share)
    loss.backward()  # type: ignore[no-untyped-call]
    return gradients_of(made)


@pytest.mark.parametrize("model", ["two_tower", "sequence"])
def test_the_mean_over_parts_is_the_gradient_of_the_whole_step(model: str) -> None:
    def gradients(rank: Ranks, share: StepShare) -> list[Tensor]:
        chosen = torch.from_numpy(rank.part(np.arange(len(LENGTHS))))
        return retriever_gradients(model, chosen, share)

    whole = gradients(ALONE, WholeOfAStep())
    assert any(float(one.abs().max()) > 1e-4 for one in whole)
    _, found = ([gradients(rank, rank.share(0, 0)) for rank in ranks] for ranks in two_parts())
    for expected, first, second in zip(whole, *found, strict=True):
        torch.testing.assert_close((first + second) / 2, expected, rtol=1e-4, atol=1e-6)


def gradients_of(model: nn.Module) -> list[Tensor]:
    return [torch.zeros(1) if one.grad is None else one.grad for one in model.parameters()]
