import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.data.top_k import ItemMask
from recsys.retrieval.exact import exact_top_k
from tests.recsys.testing.tensors import top_k_of_scores


def integer_vectors(seed: int, *shape: int) -> torch.Tensor:
    """Small integers, so that every product is exact and ties abound."""
    return torch.from_numpy(np.random.default_rng(seed).integers(-2, 3, shape)).float()


@settings(deadline=None)
@given(
    seed=st.integers(0, 10**6),
    num_items=st.integers(1, 60),
    k=st.integers(1, 70),
    share=st.floats(0, 1),
    max_scores=st.sampled_from([1, 7, 40, 10_000]),
)
def test_agrees_with_ranking_the_whole_product(seed, num_items, k, share, max_scores):
    queries, items = integer_vectors(seed, 4, 6), integer_vectors(seed + 1, num_items, 6)
    mask = ItemMask(np.random.default_rng(seed).random(num_items) < share)
    found = exact_top_k(queries, items, k, mask, max_scores=max_scores)
    truth = top_k_of_scores(queries @ items.T, k, mask)
    assert torch.equal(found.item_rows, truth.item_rows)
    assert torch.equal(found.scores, truth.scores)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_query_that_is_not_finite_is_refused(bad):
    queries = torch.zeros(3, 4)
    queries[1, 2] = bad
    with pytest.raises(ValueError, match="query 1 holds NaN or infinity"):
        exact_top_k(queries, torch.zeros(9, 4), 3)
