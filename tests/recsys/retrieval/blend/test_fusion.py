from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.recsys.retrieval.blend.plain_fusion import reciprocal_rank_fusion

pytestmark = pytest.mark.numerics


def fused_slowly(
    lists: dict[str, list[int]], k: int, weights: dict[str, int]
) -> list[tuple[int, Fraction, list[int]]]:
    """(row, exact score, rank by source) of one query, by the paper's formula."""
    items = sorted({row for rows in lists.values() for row in rows if row > 0})
    fused = []
    for item in items:
        ranks = [rows.index(item) + 1 if item in rows else 0 for rows in lists.values()]
        shares = [
            Fraction(weights[name], 60 + rank)
            for name, rank in zip(lists, ranks, strict=True)
            if rank
        ]
        score = sum(shares, Fraction(0))
        fused.append((item, score, ranks))
    return sorted(fused, key=lambda entry: (-entry[1], entry[0]))[:k]


@settings(deadline=None)
@given(
    lists=st.lists(st.lists(st.integers(-1, 12), min_size=6, max_size=6), min_size=4, max_size=4),
    k=st.integers(1, 30),
    weights=st.lists(st.sampled_from([0, 1, 2]), min_size=2, max_size=2),
)
def test_agrees_with_exact_fractions(lists, k, weights):
    batch = {"tower": torch.tensor(lists[:2]), "popular": torch.tensor(lists[2:])[:, :4]}
    named = dict(zip(batch, weights, strict=True))
    blended = reciprocal_rank_fusion(batch, k, named)
    for query in range(2):
        alone = {name: rows[query].tolist() for name, rows in batch.items()}
        truth = fused_slowly(alone, k, named)
        padding = k - len(truth)
        assert blended.item_rows[query].tolist() == [row for row, _, _ in truth] + [-1] * padding
        ranks = [ranks for _, _, ranks in truth] + [[0, 0]] * padding
        assert blended.source_ranks[query].tolist() == ranks
        scores = [float(score) for _, score, _ in truth] + [-torch.inf] * padding
        assert blended.scores[query].tolist() == pytest.approx(scores, rel=1e-6)


def test_the_papers_formula_on_a_small_case():
    blended = reciprocal_rank_fusion(
        {"a": torch.tensor([[5, 7, 9]]), "b": torch.tensor([[7, 3]])}, 5
    )
    assert blended.sources == ("a", "b")
    assert blended.item_rows.tolist() == [[7, 5, 3, 9, -1]]
    assert blended.scores[0, 0].item() == pytest.approx(1 / 62 + 1 / 61)
    assert (blended.source_ranks > 0).tolist()[0][:2] == [[True, True], [True, False]]


def test_the_order_of_sources_does_not_decide_between_equals():
    """Items 4, 5, 6 hold ranks 1, 2, 3 in three sources, each in another order."""
    lists = {
        "a": torch.tensor([[6, 5, 4]]),
        "b": torch.tensor([[5, 4, 6]]),
        "c": torch.tensor([[4, 6, 5]]),
    }
    assert reciprocal_rank_fusion(lists, 3).item_rows.tolist() == [[4, 5, 6]]


def test_a_source_of_weight_zero_fills_up():
    lists = {"tower": torch.tensor([[8, -1]]), "popular": torch.tensor([[2, 8]])}
    blended = reciprocal_rank_fusion(lists, 3, {"popular": 0})
    assert blended.item_rows.tolist() == [[8, 2, -1]]
    assert blended.scores.tolist() == [[pytest.approx(1 / 61), 0, -torch.inf]]


def test_empty_lists_give_empty_lists():
    blended = reciprocal_rank_fusion({"a": torch.zeros(2, 0, dtype=torch.int64)}, 3)
    assert blended.item_rows.tolist() == [[-1] * 3] * 2
    assert reciprocal_rank_fusion({"a": torch.zeros(0, 4).long()}, 3).item_rows.shape == (0, 3)


@pytest.mark.parametrize(
    ("lists", "weights", "constant", "message"),
    [
        ({}, {}, 60, "no source to blend"),
        ({"a": torch.zeros(2, 3), "b": torch.zeros(1, 3)}, {}, 60, "for the same queries"),
        ({"a": torch.zeros(3)}, {}, 60, "for the same queries"),
        ({"a": torch.zeros(1, 3)}, {"b": 1.0}, 60, r"weights name \['b'\]"),
        ({"a": torch.zeros(1, 3)}, {"a": -1.0}, 60, "finite and >= 0"),
        ({"a": torch.zeros(1, 3)}, {"a": torch.nan}, 60, "finite and >= 0"),
        ({"a": torch.zeros(1, 3)}, {}, 0, "constant must be finite and > 0"),
    ],
)
def test_what_cannot_be_blended_is_refused(lists, weights, constant, message):
    with pytest.raises(ValueError, match=message):
        reciprocal_rank_fusion(lists, 3, weights, constant=constant)
