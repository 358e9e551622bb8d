"""A ranker over a given score: at first it is that score, then it learns what to add."""

import pytest
import torch

from recsys.data.batch import Jagged, JaggedBatch
from recsys.fitting.ranker import metric_by_query
from recsys.models.item_tower import ItemCatalogue
from recsys.models.ranker.config import RankerConfig, RankerInputs
from recsys.models.ranker.model import Ranker
from recsys.models.ranker.network import Candidates
from recsys.training.optim import adamw
from recsys.training.passes import AdamWConfig, RankerFitConfig
from recsys.training.ranker_fit import fit_line, ranker_loss, score_candidates
from recsys.training.ranking_examples import Outcomes, RankingExamples, labels_of
from tests.recsys.testing.refusals import assert_refused

pytestmark = pytest.mark.numerics

NUM_ITEMS, NUM_QUERIES, LENGTH = 40, 60, 20
NUMBERS = ("other", "score", "hint")


def examples(seed: int = 0) -> RankingExamples:
    """Queries whose event is the candidate with the largest hint, whatever its score."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.stack(
        [
            torch.randperm(NUM_ITEMS - 1, generator=generator)[:LENGTH] + 1
            for _ in range(NUM_QUERIES)
        ]
    )
    numbers = torch.randn(NUM_QUERIES, LENGTH, len(NUMBERS), generator=generator)
    numbers[:, :, 1] = -torch.arange(LENGTH) / 4
    numbers[:, :, 2] = numbers[:, :, 2] * 30 + 500
    targets = Jagged.one_each(rows.gather(1, numbers[:, :, 2].argmax(1, keepdim=True))[:, 0])
    outcomes = Outcomes.of_values(torch.full((NUM_QUERIES,), 5.0))
    labels = labels_of(rows, targets, outcomes, ("next",), 4.0)
    history = Jagged.one_each(rows[:, 0])
    candidates = Candidates(rows, numbers)
    return RankingExamples(JaggedBatch({"history": history}), targets, candidates, labels)


def ranker(trunk: str = "dense") -> Ranker:
    torch.manual_seed(0)
    inputs = RankerInputs(
        num_item_rows=NUM_ITEMS, tasks=("next",), candidate_dense=NUMBERS, base_feature="score"
    )
    config = RankerConfig(
        trunk=trunk,  # type: ignore[arg-type]
        embedding_dim=8,
        key_dim=8,
        hidden_dim=8,
        num_experts=2,
        tile_rows=32,
        backend="torch",
    )
    return Ranker(config, inputs, ItemCatalogue.empty(NUM_ITEMS))


def hits(model: Ranker, found: RankingExamples) -> float:
    """Share of queries whose event comes first."""
    first = score_candidates(model, found, torch.arange(NUM_QUERIES)).argmax(1, keepdim=True)
    return float(found.labels[:, :, 0].gather(1, first).mean())


def test_it_learns_what_the_other_numbers_add() -> None:
    found, unseen, model = examples(), examples(seed=1), ranker()
    config = RankerFitConfig(num_candidates=LENGTH, num_hard=5, num_random=10, batch_size=20)
    everyone = torch.arange(NUM_QUERIES)
    before = hits(model.eval(), unseen)
    loss_at = ranker_loss(model, found, everyone, config, 0, torch.device("cpu"))
    by_line = hits(model.eval(), unseen)
    optimizer = adamw(model.train(), AdamWConfig())
    for group in optimizer.param_groups:
        group["lr"] = 0.02
    for step in range(60):
        optimizer.zero_grad()
        loss_at(step).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert before < 0.2
    assert by_line > 0.7
    assert hits(model.eval(), unseen) > 0.8


def test_an_item_taken_twice_is_one_target() -> None:
    found, model, everyone = examples(), ranker().eval(), torch.arange(NUM_QUERIES)
    once = metric_by_query(model, found, everyone, "ndcg@10")
    values = found.targets.values.repeat_interleave(2)
    found = found._replace(targets=Jagged(values, found.targets.offsets * 2))
    assert torch.equal(metric_by_query(model, found, everyone, "ndcg@10"), once)
    assert 0 < float(once.max()) <= 1


def test_the_line_is_the_likeliest_one_of_whole_lists() -> None:
    found, model, l2 = examples(), ranker(), 3.0
    chosen = torch.arange(0, NUM_QUERIES, 2)
    found.candidates.item_rows[4, 15:] = -1
    found.candidates.features[4, 15:] = 0
    found.labels[4, 15:] = torch.nan
    model.correction.fit_scale(found.candidates.features[chosen].flatten(0, 1))
    fit_line(model.correction, found, chosen, l2)
    # No small change of any weight makes what was taken likelier, by a loss written down anew.
    numbers = model.correction.standardised(found.candidates.features).double()
    weight = model.correction.weight.detach()[0].double().requires_grad_()
    loss = l2 / 2 * weight.square().sum()
    for query in chosen.tolist():
        there = found.candidates.item_rows[query] > 0
        scores = found.candidates.features[query, there, 1] + numbers[query, there] @ weight
        taken = found.labels[query, there, 0] == 1
        loss = loss - scores.log_softmax(0)[taken].sum()
    (slope,) = torch.autograd.grad(loss, weight)
    assert float(slope.abs().max()) < 0.05
    assert float(weight.detach().abs().max()) > 1


def test_numbers_that_are_missing_are_refused_in_training_and_in_serving() -> None:
    found, model, config = examples(), ranker(), RankerFitConfig()
    found.candidates.features[3, 2, 2] = torch.nan
    everyone = torch.arange(NUM_QUERIES)
    assert_refused(
        {
            "not finite": lambda: ranker_loss(
                model, found, everyone, config, 0, torch.device("cpu")
            ),
            "'hint' is nan in row 62": lambda: model.eval().score(found.whole_batch(everyone)),
        }
    )
