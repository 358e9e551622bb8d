import numpy as np
import polars as pl
import pytest
import torch

from pipelines.pages.wins import count_wins, models_of, read_ranks
from recsys.evaluation.slices import Slice

RANKS = np.array(
    [
        [1, 3, 3],  # a alone
        [4, 2, 4],  # b alone
        [2, 2, 6],  # a and b alike
        [6, 6, 6],  # nobody, at depth 5
        [6, 6, 5],  # c alone
    ]
)


def slices(*members: list[bool]) -> list[Slice]:
    return [
        Slice("group", str(place), torch.tensor(member)) for place, member in enumerate(members)
    ]


def test_wins_of_a_hand_made_table_are_counted():
    wins = count_wins(RANKS, ["a", "b", "c"], 5, slices([True, True, False, False, False]))
    everyone, part = wins.slices
    assert everyone["alone"] == {"a": 0.2, "b": 0.2, "c": 0.2}
    assert (everyone["shared"], everyone["missed"]) == (0.2, 0.2)
    assert part["alone"] == {"a": 0.5, "b": 0.5, "c": 0}
    assert part["num_targets"] == 2
    assert wins.pairs["a"] == {"b": 0.2, "c": 0.4}
    assert wins.pairs["b"] == {"a": 0.2, "c": 0.4}
    assert wins.pairs["c"] == {"a": 0.2, "b": 0.2}


def test_shares_of_every_slice_sum_to_one():
    rng = np.random.default_rng(0)
    ranks = np.minimum(rng.integers(1, 40, (500, 4)), 21)
    parts = slices(*(rng.random((3, 500)) < 0.3).tolist())
    wins = count_wins(ranks, list("abcd"), 20, parts)
    for part in wins.slices:
        shares = (*part["alone"].values(), part["shared"], part["missed"])
        assert sum(shares) == pytest.approx(1)


def test_empty_slice_has_no_shares():
    empty = count_wins(RANKS, ["a", "b", "c"], 5, slices([False] * 5)).slices[1]
    assert (empty["num_targets"], empty["alone"]) == (0, {})


def test_ranks_beyond_the_depth_and_unlisted_items_are_alike(tmp_path):
    table = tmp_path / "per_user.parquet"
    frame = pl.DataFrame({"user_row": [1, 2, 3], "rank_b": [7, None, 900], "rank_a": [1, 100, 101]})
    frame.write_parquet(table)
    models = models_of(frame.columns)
    assert models == ("b", "a")
    assert read_ranks(table, models, 100).tolist() == [[7, 1], [101, 100], [101, 101]]
