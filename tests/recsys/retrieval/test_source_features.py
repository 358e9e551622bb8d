import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.data.top_k import TopK
from recsys.retrieval.blend import reciprocal_rank_fusion
from recsys.retrieval.source_features import FEATURES, merge_lists


def features_slowly(
    scores: list[float], rows: list[int], item: int, sharpness: float
) -> list[float]:
    """Features of one item in one list, by their definition."""
    if item not in rows:
        return [0.0] * len(FEATURES)
    known = np.array([s for s, row in zip(scores, rows, strict=True) if row > 0])
    spread = known.std()
    best = {row: s for s, row in reversed(list(zip(scores, rows, strict=True))) if row > 0}
    z = {row: (s - known.min()) / spread if spread else 0.0 for row, s in best.items()}
    root = np.sqrt(np.exp(sharpness * z[item]) / sum(np.exp(sharpness * v) for v in z.values()))
    return [z[item], root, 61 / (60 + rows.index(item) + 1), 1.0]


@settings(deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(-1, 9), min_size=6, max_size=6), min_size=4, max_size=4),
    scores=st.lists(st.lists(st.integers(-20, 20), min_size=6, max_size=6), min_size=4, max_size=4),
    sharpness=st.floats(0, 3),
)
def test_agrees_with_the_definition_and_keeps_the_order_of_fusion(rows, scores, sharpness):
    numbers = torch.tensor(scores).float().sort(1, descending=True).values
    lists = {
        "a": TopK(numbers[:2], torch.tensor(rows[:2])),
        "b": TopK(numbers[2:, :4], torch.tensor(rows[2:])[:, :4]),
    }
    merged = merge_lists(lists)
    features = merged.features(torch.tensor([sharpness, 1.0]))
    fused = reciprocal_rank_fusion({name: top.item_rows for name, top in lists.items()}, 10)
    assert torch.equal(merged.item_rows, fused.item_rows)
    assert torch.equal(merged.ranks, fused.source_ranks)
    for query in range(2):
        for place, item in enumerate(merged.item_rows[query].tolist()):
            truth = [
                features_slowly(top.scores[query].tolist(), top.item_rows[query].tolist(), item, s)
                if item > 0
                else [0.0] * 4
                for top, s in zip(lists.values(), [sharpness, 1.0], strict=True)
            ]
            found = features[query, place].numpy()
            np.testing.assert_allclose(found, np.array(truth), rtol=1e-5, atol=1e-6)


def test_features_do_not_depend_on_the_scale_of_scores():
    rows = torch.tensor([[4, 2, 9, -1]])
    scores = torch.tensor([[3.0, 2.5, -1.0, -torch.inf]])
    one = merge_lists({"a": TopK(scores, rows)}).features(torch.ones(1))
    other = merge_lists({"a": TopK(scores * 1e4 + 7, rows)}).features(torch.ones(1))
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_equal_scores_differ_in_nothing_but_rank():
    scores, rows = torch.full((1, 3), 0.1), torch.tensor([[7, 1, 3]])
    features = merge_lists({"a": TopK(scores, rows)}).features(torch.ones(1))[0, :, 0]
    assert features[:, 0].tolist() == [0, 0, 0]
    assert features[:, 1].tolist() == pytest.approx([3**-0.5] * 3)
    assert features[:, 2].tolist() == pytest.approx([1, 61 / 62, 61 / 63])


@pytest.mark.parametrize("length", [0, 3])
def test_lists_without_items_give_none(length):
    empty = TopK(torch.full((2, length), -torch.inf), torch.full((2, length), -1))
    merged = merge_lists({"a": empty})
    assert merged.item_rows.tolist() == [[-1] * length] * 2
    assert merged.features(torch.ones(1)).abs().sum() == 0


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ({}, "no source to blend"),
        ({"a": TopK(torch.zeros(2, 3), torch.ones(2, 2).long())}, "for the same queries"),
        ({"a": TopK(torch.zeros(3), torch.ones(3).long())}, "for the same queries"),
        (
            {
                "a": TopK(torch.zeros(2, 1), torch.ones(2, 1).long()),
                "b": TopK(torch.zeros(1, 1), torch.ones(1, 1).long()),
            },
            "for the same queries",
        ),
        (
            {"a": TopK(torch.tensor([[torch.nan]]), torch.tensor([[5]]))},
            "source 'a' scores item row 5 of query 0 nan",
        ),
        (
            {"a": TopK(torch.tensor([[-torch.inf]]), torch.tensor([[5]]))},
            "holes have item row -1",
        ),
    ],
)
def test_what_cannot_be_merged_is_refused(lists, message):
    with pytest.raises(ValueError, match=message):
        merge_lists(lists)
