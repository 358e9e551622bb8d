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
