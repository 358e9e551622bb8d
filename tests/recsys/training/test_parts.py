"""A step in parts has the gradient of the whole step."""

import numpy as np
import pytest
import torch
from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch, StepShare
from recsys.models.configs import TwoTowerConfig
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.ranker.batch import Candidates
from recsys.models.ranker.config import RankerConfig, RankerInputs
from recsys.models.ranker.model import Ranker
from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.model import SequenceModel
from recsys.models.two_tower import TwoTower
from recsys.training.passes import RankerFitConfig
from recsys.training.ranker_fit import ranker_loss
from recsys.training.ranking_examples import Outcomes, RankingExamples, labels_of
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
    queries = JaggedBatch({"history": Jagged.one_each(rows[:, 0])})
    return RankingExamples(queries, targets, Candidates(rows, features), labels)


def ranker() -> Ranker:
    torch.manual_seed(0)
    inputs = RankerInputs(
        num_item_rows=NUM_ITEMS,
        tasks=("next", "like"),
        candidate_dense=("score", "other"),
        base_feature="score",
    )
    config = RankerConfig(
        trunk="dense", embedding_dim=8, key_dim=8, hidden_dim=8, tile_rows=32, backend="torch"
    )
    # Without dropout, which each part would draw for itself.
    return Ranker(config, inputs, ItemCatalogue.empty(NUM_ITEMS)).eval()


def gradients(ranks: Ranks) -> list[Tensor]:
    model, found = ranker(), examples()
    ranker_loss(model, found, EVERYONE, CONFIG, 0, CPU, ranks)(3).backward()
    return [torch.zeros(1) if one.grad is None else one.grad for one in model.parameters()]


def test_the_mean_over_parts_is_the_gradient_of_the_whole_step() -> None:
    first_round, second_round = two_parts()
    for rank in first_round:
        gradients(rank)
    parts = [gradients(rank) for rank in second_round]
    whole = gradients(ALONE)
    assert any(float(one.abs().max()) > 1e-4 for one in whole)
    for expected, first, second in zip(whole, *parts, strict=True):
        torch.testing.assert_close((first + second) / 2, expected, rtol=1e-4, atol=1e-6)


RETRIEVER_NUM_ITEMS, DRAWS = 50, 8
SIZES = FeatureSizes(num_item_rows=RETRIEVER_NUM_ITEMS)
# Parts of 3 and 2 sequences with different numbers of labels.
LENGTHS = torch.tensor([7, 3, 2, 6, 5])


def history() -> Jagged:
    generator = torch.Generator().manual_seed(2)
    values = torch.randint(1, RETRIEVER_NUM_ITEMS, (int(LENGTHS.sum()),), generator=generator)
    return Jagged(values, torch.nn.functional.pad(LENGTHS.cumsum(0), (1, 0)))


def retriever_gradients(model: str, chosen: Tensor, share: StepShare) -> list[Tensor]:
    torch.manual_seed(0)
    counts = torch.arange(RETRIEVER_NUM_ITEMS)
    events = history().take(chosen)
    made: SequenceModel | TwoTower
    if model == "sequence":
        config = SequenceConfig(
            embedding_dim=8, hidden_dim=8, max_length=8, num_uniform_negatives=DRAWS,
            label_smoothing=0.1, backend="torch",
        )  # fmt: skip
        made = SequenceModel(config, SIZES, ItemCatalogue.empty(RETRIEVER_NUM_ITEMS), counts).eval()
        loss = made.loss(JaggedBatch({"history": events}), share=share)
    else:
        two_tower = TwoTowerConfig(
            embedding_dim=8, hidden_dim=8, num_uniform_negatives=DRAWS, backend="torch"
        )
        made = TwoTower(two_tower, SIZES, ItemCatalogue.empty(RETRIEVER_NUM_ITEMS), counts).eval()
        loss = made.loss(JaggedBatch({"history": events}), 1 + chosen * 7, share)
    loss.backward()  # type: ignore[no-untyped-call]
    return [torch.zeros(1) if one.grad is None else one.grad for one in made.parameters()]


@pytest.mark.parametrize("model", ["two_tower", "sequence"])
def test_the_mean_over_parts_is_the_gradient_of_the_whole_step_retriever(model: str) -> None:
    everyone = torch.arange(len(LENGTHS))
    whole = retriever_gradients(model, everyone, WholeOfAStep())
    first_round, second_round = two_parts()
    found = [
        [
            retriever_gradients(
                model, torch.from_numpy(rank.part(everyone.numpy())), rank.share(0, 0)
            )
            for rank in ranks
        ]
        for ranks in (first_round, second_round)
    ]
    assert any(float(one.abs().max()) > 1e-4 for one in whole)
    for expected, first, second in zip(whole, *found[1], strict=True):
        torch.testing.assert_close((first + second) / 2, expected, rtol=1e-4, atol=1e-6)
