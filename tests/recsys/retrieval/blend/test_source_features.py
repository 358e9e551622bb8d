import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recsys.data.top_k import TopK
from recsys.retrieval.blend.choices import Choices, fit_weights
from recsys.retrieval.blend.source_features import FEATURES, merge_lists
from tests.recsys.retrieval.blend.plain_fusion import reciprocal_rank_fusion
from tests.recsys.testing.refusals import assert_refused

pytestmark = pytest.mark.numerics


def features_slowly(scores: list[float], rows: list[int], item: int, scale: float) -> list[float]:
    """Features of one item in one list, by their definition."""
    if item not in rows:
        return [0.0] * len(FEATURES)
    known = np.array([s for s, row in zip(scores, rows, strict=True) if row > 0])
    spread = known.std()
    best = {row: s for s, row in reversed(list(zip(scores, rows, strict=True))) if row > 0}
    lead = best[item] - known.min()
    z_score = lead / spread if spread else 0.0
    return [scale * lead, z_score, 61 / (60 + rows.index(item) + 1), 1.0]


@settings(deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(-1, 9), min_size=6, max_size=6), min_size=4, max_size=4),
    scores=st.lists(st.lists(st.integers(-20, 20), min_size=6, max_size=6), min_size=4, max_size=4),
    scale=st.floats(0, 3),
)
def test_agrees_with_the_definition_and_keeps_the_order_of_fusion(rows, scores, scale):
    numbers = torch.tensor(scores).float().sort(1, descending=True).values
    lists = {
        "a": TopK(numbers[:2], torch.tensor(rows[:2])),
        "b": TopK(numbers[2:, :4], torch.tensor(rows[2:])[:, :4]),
    }
    merged = merge_lists(lists)
    features = merged.features(torch.tensor([scale, 1.0]))
    fused = reciprocal_rank_fusion({name: top.item_rows for name, top in lists.items()}, 10)
    assert torch.equal(merged.item_rows, fused.item_rows)
    assert torch.equal(merged.ranks, fused.source_ranks)
    for query in range(2):
        for place, item in enumerate(merged.item_rows[query].tolist()):
            truth = [
                features_slowly(top.scores[query].tolist(), top.item_rows[query].tolist(), item, s)
                if item > 0
                else [0.0] * 4
                for top, s in zip(lists.values(), [scale, 1.0], strict=True)
            ]
            found = features[query, place].numpy()
            np.testing.assert_allclose(found, np.array(truth), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("length", [0, 3])
def test_lists_without_items_give_none(length):
    empty = TopK(torch.full((2, length), -torch.inf), torch.full((2, length), -1))
    merged = merge_lists({"a": empty})
    assert merged.item_rows.tolist() == [[-1] * length] * 2
    assert merged.features(torch.ones(1)).abs().sum() == 0


def test_what_cannot_be_merged_is_refused():
    def merging(**lists: tuple[Tensor, Tensor]):
        return lambda: merge_lists({name: TopK(*top) for name, top in lists.items()})

    def scoring(score: float):
        return merging(a=(torch.tensor([[score]]), torch.tensor([[5]])))

    assert_refused(
        {
            "no source to blend": merging(),
            "source 'a' scores item row 5 of query 0 nan": scoring(torch.nan),
            "holes have item row -1": scoring(-torch.inf),
        }
    )


def chosen_by(
    weights: Tensor, num_queries: int, num_candidates: int = 12, seed: int = 0
) -> Choices:
    """Choices of users who follow the weights, [P]."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(num_queries, num_candidates, len(weights), generator=generator)
    place = torch.multinomial((features @ weights).softmax(1), 1, generator=generator)
    chosen = torch.zeros(num_queries, num_candidates).scatter_(1, place, 1.0)
    return Choices(features, torch.zeros(num_queries, num_candidates), chosen)


def penalised_slowly(choices: Choices, prior: Tensor, precision: Tensor, weights: Tensor) -> Tensor:
    logits = choices.features.double() @ weights + choices.offsets.double()
    log_shares = logits.log_softmax(1).masked_fill(choices.chosen == 0, 0)
    apart = weights - prior
    return apart @ precision @ apart / 2 - (choices.chosen.double() * log_shares).sum()


@pytest.mark.parametrize("non_negative", [False, True])
def test_is_the_minimum_that_slow_descent_finds(non_negative):
    choices = chosen_by(torch.tensor([1.0, -1.0, 0.3]), 500)
    prior = torch.tensor([0.0, 0.5, 0.0], dtype=torch.float64)
    precision = 20 * torch.eye(3, dtype=torch.float64) + 5
    fitted = fit_weights(choices, prior, precision, non_negative=non_negative)
    weights = prior.clone().requires_grad_()
    for _ in range(400):
        (slope,) = torch.autograd.grad(
            penalised_slowly(choices, prior, precision, weights), weights
        )
        with torch.no_grad():
            weights -= 1e-3 * slope
            if non_negative:
                weights.clamp_(min=0)
    torch.testing.assert_close(fitted.weights.double(), weights.detach(), atol=2e-3, rtol=0)
    assert (float(fitted.weights[1]) == 0) is non_negative
