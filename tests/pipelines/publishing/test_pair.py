"""The gate's answer on two workspaces of the same shop."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pipelines.config.release import ReleaseConfig
from pipelines.publishing.pair import compare_workspaces

NUM_USERS = 1_000


def workspace(path: Path, hits: np.ndarray, model: str = "blend") -> Path:
    """A run on one held-out item a user, found at rank 1 or not at all."""
    num_users, features = len(hits), path / "build_features"
    sequences = features / "sequences" / "given"
    sequences.mkdir(parents=True)
    (features / "vocabularies").mkdir()
    (path / "evaluate").mkdir()
    offsets = 3 * np.arange(-1, num_users + 1).clip(0)
    ends = np.maximum(offsets[1:] - 1, 0)
    # New users have two events before the held-out one; every item is held out as often.
    items = np.stack([np.ones(num_users), np.ones(num_users), 1 + np.arange(num_users) % 20], 1)
    arrays = {"offsets": offsets, "train_end": ends, "validation_end": ends}
    for name, values in {**arrays, "item_rows": items.ravel()}.items():
        np.save(sequences / f"{name}.npy", values.astype(np.int64))
    rows = range(1, num_users + 1)
    item_rows = range(1, 21)
    pl.DataFrame(
        {"item_row": item_rows, "item_id": [f"i{row}" for row in item_rows]}
    ).write_parquet(features / "items.parquet")
    pl.DataFrame({"row": rows, "id": [f"u{row}" for row in rows]}).write_parquet(
        features / "vocabularies" / "users.parquet"
    )
    metrics = {"given": {"test": {"popularity": {}, model: {}}}}
    (path / "evaluate" / "metrics.json").write_text(json.dumps(metrics))
    pl.DataFrame(
        {
            "user_row": rows,
            "item_row": items[:, 2].astype(np.int64),
            f"rank_{model}": pl.Series([1 if hit else None for hit in hits], dtype=pl.Int64),
        }
    ).write_parquet(path / "evaluate" / "per_user_given_test.parquet")
    return path


def test_pair_is_judged_by_the_rule_of_the_gate(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    good = rng.random(NUM_USERS) < 0.6
    bad = good & (rng.random(NUM_USERS) < 0.7)
    first, second = workspace(tmp_path / "a", good), workspace(tmp_path / "b", bad)
    loses, gains = compare_workspaces(first, second), compare_workspaces(second, first)
    assert (loses.decision, loses.releases) == ("worse", False)
    assert (gains.decision, gains.releases) == ("better", True)
    by = loses.compared.by
    assert by is not None
    assert by.difference == pytest.approx(bad.mean() - good.mean())
    assert by.high < 0
    assert loses.power["users"] == NUM_USERS
    assert loses.verdicts[0].bound == -loses.config.max_loss
    assert {one.name for one in loses.compared.losses} >= {"user_activity new"}
    equal = compare_workspaces(first, first, config=ReleaseConfig(when_undecided="keep"))
    assert (equal.decision, equal.releases) == ("not enough evidence", True)


def test_too_few_common_users_are_no_evidence(tmp_path: Path) -> None:
    few = np.ones(50, np.bool_)
    first, second = workspace(tmp_path / "a", few), workspace(tmp_path / "b", ~few)
    answer = compare_workspaces(first, second)
    assert (answer.decision, answer.releases, answer.power) == ("not enough evidence", True, {})


def test_run_without_evaluation_or_model_is_named(tmp_path: Path) -> None:
    first = workspace(tmp_path / "a", np.ones(2, np.bool_))
    with pytest.raises(ValueError, match="was not evaluated; run recsys run --until evaluate"):
        compare_workspaces(first, tmp_path)
    with pytest.raises(ValueError, match="no ranks of the model 'ease'"):
        compare_workspaces(first, first, models=(None, "ease"))
