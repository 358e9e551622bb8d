import polars as pl

from pipelines.evaluation.per_user import models_in, read_targets


def test_models_and_held_out_items_of_each_user_are_read(tmp_path):
    frame = pl.DataFrame({"user_row": [1, 2, 2], "item_row": [7, 5, 6], "rank_b": 1, "rank_a": 2})
    frame.write_parquet(tmp_path / "per_user.parquet")
    assert models_in(frame.columns) == ("b", "a")
    users, targets = read_targets(tmp_path / "per_user.parquet")
    assert users.tolist() == [1, 2]
    assert (targets.values.tolist(), targets.offsets.tolist()) == ([7, 5, 6], [0, 1, 3])
