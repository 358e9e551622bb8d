import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from recsys.data.top_k import ItemMask, best_of_one, reranked_places
from tests.recsys.testing.refusals import assert_refused
from tests.recsys.testing.tensors import top_k_of_scores


def ranked_slowly(scores: Tensor, k: int, mask: ItemMask) -> list[list[int]]:
    """Sort (-score, row) in plain Python."""
    lists = []
    for row in scores.tolist():
        eligible = [i for i in mask.rows() if row[i] > -np.inf]
        ranked = sorted(eligible, key=lambda i, row=row: (-row[i], i))[:k]
        lists.append([int(i) for i in ranked] + [-1] * (k - len(ranked)))
    return lists


@given(
    seed=st.integers(0, 10**6),
    num_items=st.integers(1, 40),
    num_levels=st.integers(1, 5),
    k=st.integers(1, 50),
    share=st.floats(0, 1),
)
def test_agrees_with_a_plain_sort_under_heavy_ties(seed, num_items, num_levels, k, share):
    random = np.random.default_rng(seed)
    levels = np.array([0.0, -0.0, 1.5, -2.0, -np.inf, 7.0])
    scores = torch.tensor(random.choice(levels[: num_levels + 1], (3, num_items)))
    mask = ItemMask(random.random(num_items) < share)
    found = top_k_of_scores(scores, k, mask)
    assert found.item_rows.tolist() == ranked_slowly(scores, k, mask)
    padded = found.item_rows == -1
    assert (found.scores[padded] == -torch.inf).all()
    kept = scores.float().gather(1, found.item_rows.clamp_min(0))[~padded]
    assert torch.equal(kept, found.scores[~padded])


def test_a_nan_is_refused_unless_it_is_masked_and_a_mask_of_another_catalogue_too():
    scores = torch.zeros(3, 50)
    scores[2, 40] = torch.nan
    masked = top_k_of_scores(scores, 1, ItemMask(np.arange(50) == 39))
    assert masked.item_rows.tolist() == [[39]] * 3
    assert_refused(
        {
            "query 2 hold NaN": lambda: top_k_of_scores(scores, 5),
            "mask covers 4 item rows, the catalogue has 50": lambda: top_k_of_scores(
                scores, 1, ItemMask.all(4)
            ),
        }
    )


def test_one_list_is_a_plain_sort_however_many_scores_are_equal():
    random = np.random.default_rng(3)
    for levels in (2, 40, 10_000):
        scores = random.integers(0, levels, 500).astype(np.float32)
        scores[random.random(500) < 0.3] = -np.inf
        order = np.lexsort((np.arange(500), -scores))
        for k in (1, 100, 349, 500, 501):
            expected = [row for row in order[:k].tolist() if scores[row] > -np.inf]
            assert best_of_one(torch.from_numpy(scores), k).item_rows.tolist() == expected
    scores[7] = np.nan
    with pytest.raises(ValueError, match="query 0 hold NaN"):
        best_of_one(torch.from_numpy(scores), 3)


def test_first_places_take_a_new_order_and_the_rest_follows():
    # A catalogue with fewer items than a ranker reads has holes.
    for scores, k, places in (
        ([0.1, 0.9, 0.1], 4, [1, 0, 2, 3]),
        ([0.1, 0.9, -torch.inf], 3, [1, 0, 2]),
        ([0.1, 0.9, -torch.inf, -torch.inf], 3, [1, 0, 2]),
    ):
        assert reranked_places(torch.tensor([scores]), k).tolist() == [places]
