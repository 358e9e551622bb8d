import numpy as np
import polars as pl

from pipelines.pages.examples import chosen_users, read_examples
from recsys.data.dataset import Sequences


def test_each_outcome_is_shown_by_the_user_of_middling_history():
    frame = pl.DataFrame(
        {
            "user_row": [1, 2, 3, 4, 5, 6, 6],
            "rank_a": [1, 2, 3, 50, None, 50, 4],
            "rank_b": [99, 99, 99, 99, 99, 9, 99],
        }
    )
    lengths = np.array([0, 30, 10, 20, 5, 6, 7])
    found = chosen_users(frame.lazy(), ["a", "b"], lengths)
    # Of users 1, 2 and 3 the one with 20 events; 6 has two items, each found by another model.
    assert found == [(("a", "b"), 6), (("a",), 3), ((), 5)]


def test_where_no_outcome_is_telling_the_commonest_is_shown():
    ranks = {"rank_a": [1, 2, 9], "rank_b": [3, 4, 99], "rank_c": [99, 99, 2]}
    frame = pl.DataFrame({"user_row": [1, 2, 3], **ranks})
    found = chosen_users(frame.lazy(), ["a", "b", "c"], np.array([0, 5, 6, 7]))
    assert found == [(("a", "b"), 2)]


def test_lists_carry_titles_and_mark_the_hidden_item(tmp_path):
    folder = tmp_path / "sequences"
    folder.mkdir()
    arrays = {
        "item_rows": [1, 2, 3, 4],
        "offsets": [0, 0, 4],
        "train_end": [0, 2],
        "validation_end": [0, 3],
    }
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", np.array(values), allow_pickle=False)
    items = tmp_path / "items.parquet"
    texts = ["one", "two", "three", "x" * 400, "five"]
    pl.DataFrame({"item_row": [1, 2, 3, 4, 5], "display_text": texts}).write_parquet(items)
    table = tmp_path / "per_user.parquet"
    pl.DataFrame(
        {
            "user_row": [1],
            "item_row": [4],
            "rank_a": [2],
            "rank_b": pl.Series([None], dtype=pl.Int64),
            "top_k_a": [[5, 4]],
            "top_k_b": pl.Series([[]], dtype=pl.List(pl.Int64)),
        }
    ).write_parquet(table)
    (example,) = read_examples(table, items, Sequences.load(folder), ["a", "b"])
    assert example.found_by == ["a"]
    assert example.history == ["three", "two", "one"]
    assert example.held_out == ["x" * 300]
    assert [(title[:4], hit) for title, hit in example.lists["a"]] == [
        ("five", False),
        ("xxxx", True),
    ]
    assert (example.ranks, example.lists["b"]) == ({"a": 2, "b": None}, [])
