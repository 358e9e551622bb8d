import math

import pytest
import torch
from torch import Tensor

from recsys.data.batch import Jagged
from recsys.layers.chunked_softmax import SoftmaxCandidates, _Excluded, softmax_loss

pytestmark = pytest.mark.numerics


def slow_loss(
    queries: Tensor,
    vectors: Tensor,
    labels: Tensor,
    weights: Tensor,
    smoothing: float = 0.0,
    excluded: list[list[int]] | None = None,
) -> Tensor:
    """One position at a time, every score at once."""
    total = queries.new_zeros(())
    for place, query in enumerate(queries):
        scores = vectors @ query
        against = torch.ones(len(vectors), dtype=torch.bool)
        if excluded is not None:
            against[excluded[place]] = False
        against[labels[place]] = True
        normalizer = torch.logsumexp(scores[against], dim=0)
        target = (1 - smoothing) * scores[labels[place]] + smoothing * scores.mean()
        total = total + weights[place] * (normalizer - target)
    return total / weights.sum()


def made(num_positions: int = 7, num_items: int = 11) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    queries = torch.randn(num_positions, 4, generator=generator, requires_grad=True)
    vectors = torch.randn(num_items, 4, generator=generator, requires_grad=True)
    labels = torch.randint(num_items, (num_positions,), generator=generator)
    weights = torch.tensor([1.0, 0.0, 2.0, 1.0, 1.0, 0.5, 1.0])[:num_positions]
    return queries, vectors, labels, weights


@pytest.mark.parametrize("max_scores", [1, 25, 10_000])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("leave_out", [False, True])
def test_agrees_with_one_position_at_a_time(
    max_scores: int, smoothing: float, leave_out: bool
) -> None:
    queries, vectors, labels, weights = made()
    lists = [[0, 3], [], [int(labels[2]), 1], [5], [], [10, 9, 8], [2]] if leave_out else None
    expected = slow_loss(queries, vectors, labels, weights, smoothing, lists)
    wanted = torch.autograd.grad(expected, (queries, vectors))
    loss = softmax_loss(
        queries,
        SoftmaxCandidates(vectors),
        labels,
        weights,
        label_smoothing=smoothing,
        excluded=None if lists is None else Jagged.from_lists(lists),
        max_scores=max_scores,
    )
    given = torch.autograd.grad(3 * loss, (queries, vectors))
    torch.testing.assert_close(loss, expected)
    for ours, theirs in zip(given, wanted, strict=True):
        torch.testing.assert_close(ours, 3 * theirs)


def test_smoothing_over_a_sample_estimates_the_mean_of_all_scores() -> None:
    """An item that is rarely drawn stands for the more items when it is."""
    scores = torch.tensor([4.0, -2.0, 1.0])
    probability = torch.tensor([1.0, 0.25, 0.5])
    weights = 1 / probability
    even = float((weights * scores).sum() / weights.sum())
    for smoothing in (0.0, 0.3):
        loss = softmax_loss(
            torch.ones(1, 1),
            SoftmaxCandidates(scores[:, None], probability.log()),
            torch.tensor([0]),
            torch.ones(1),
            label_smoothing=smoothing,
        )
        normalizer = math.log(float((weights * scores.exp()).sum()))
        expected = normalizer - (1 - smoothing) * 4.0 - smoothing * even
        assert float(loss) == pytest.approx(expected, rel=1e-5)


def test_mixed_precision_gives_about_the_same_gradients() -> None:
    queries, vectors, labels, weights = made()
    results = []
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            loss = softmax_loss(queries, SoftmaxCandidates(vectors), labels, weights)
        results.append((loss, *torch.autograd.grad(loss, (queries, vectors))))
    for exact, low in zip(*results, strict=True):
        assert low.dtype == torch.float32
        torch.testing.assert_close(low, exact, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("begin", [0, 3, 6])
def test_pairs_turned_to_a_label_leave_out_what_cutting_them_out_does(begin: int) -> None:
    torch.manual_seed(0)
    lists = [[0, 4], [], [3, 3, 2], [1], [4, 0], [2], [], [1, 3], [0]]
    given = Jagged.from_lists(lists)
    excluded = _Excluded.of(given.values, given.offsets, len(lists))
    labels = torch.randint(5, (3,))
    scores = torch.randn(3, 5)
    other = scores.clone()
    columns, places = excluded.cut_out(labels, begin)
    scores[places, columns] = -torch.inf
    columns, places = excluded.turned_to(labels, begin)
    assert len(columns) == len(given.values)
    other[places, columns] = -torch.inf
    for left_out in (scores, other):
        left_out.scatter_(1, labels[:, None], 0.0)
    torch.testing.assert_close(scores, other, rtol=0, atol=0)
    for position, listed in enumerate(lists[begin : begin + 3]):
        gone = set(torch.isinf(scores[position]).nonzero().flatten().tolist())
        assert gone == set(listed) - {int(labels[position])}
