"""Which of the champion's evaluated answers stand for it; its bundle's are an integration test."""

from pathlib import Path

import numpy as np
import polars as pl

from pipelines.config.release import ReleaseConfig
from pipelines.publishing.same_queries import (
    RunEvents,
    SameQueries,
    answers_file,
    build_answers,
    same_queries,
    write_answers,
)
from recsys.data.dataset import Sequences

CONFIG = ReleaseConfig(min_compared=2)


def run(events: dict[str, list[str]], num_test: int = 1) -> RunEvents:
    """Users with items as their ids say; the last so many events of each are test."""
    item_ids = sorted({item for items in events.values() for item in items})
    row_of = {item: row for row, item in enumerate(item_ids, start=1)}
    lengths = [0, *(len(items) for items in events.values())]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ends = offsets[1:]
    test = np.where(np.array(lengths) > 0, num_test, 0)
    sequences = Sequences(
        item_rows=np.array([row_of[item] for items in events.values() for item in items], np.int64),
        offsets=offsets.astype(np.int64),
        train_end=ends - test,
        validation_end=ends - test,
        times=np.arange(offsets[-1], dtype=np.int64),
    )
    return RunEvents(sequences, ["", *item_ids], ["", *events])


def answers(events: RunEvents, ranks: list[int | None]) -> pl.DataFrame:
    """Answers of a run whose evaluation gave these ranks, users and their items ascending."""
    sequences = events.sequences
    users = np.arange(1, len(events.user_ids))
    pairs = sorted(
        (int(user), int(row))
        for user in users
        for row in sequences.item_rows[sequences.validation_end[user] : sequences.offsets[user + 1]]
    )
    table = pl.DataFrame(
        {
            "user_row": [user for user, _ in pairs],
            "item_row": [row for _, row in pairs],
            "rank_blend": pl.Series(ranks, dtype=pl.Int64),
        }
    )
    return build_answers(table, "blend", events)


def compared(
    folder: Path, before: pl.DataFrame, now: pl.DataFrame, events: RunEvents
) -> SameQueries:
    (folder / "bundle-old").mkdir()
    write_answers(folder, "old", before)
    return same_queries(now, events, folder, "old", config=CONFIG, seed=0)


def test_users_with_the_same_held_out_item_are_paired_by_their_ids(tmp_path: Path) -> None:
    old = run({"ann": ["a", "b", "c"], "ben": ["b", "a", "d"], "cat": ["a", "c"]})
    # Rows differ: another user and another item came first. Ben took one more.
    new = run(
        {
            "abe": ["a", "aa"],
            "ann": ["a", "b", "c"],
            "ben": ["b", "a", "d", "a"],
            "cat": ["a", "c"],
        }
    )
    found = compared(tmp_path, answers(old, [4, 5, None]), answers(new, [9, 1, 2, 3]), new)
    assert not found.by_bundle
    assert found.alike
    assert found.champion.values.tolist() == [4, 0]
    assert found.challenger.values.tolist() == [1, 3]
    assert [new.item_ids[row] for row in found.targets.values.tolist()] == ["c", "c"]
    assert found.num_events.tolist() == [2, 1]
    assert found.times is not None
    assert found.times.tolist() == [4, 10]


def test_a_user_counts_only_if_all_held_out_items_are_the_same(tmp_path: Path) -> None:
    same = {"ben": ["a", "b", "c"], "cat": ["b", "c", "d"]}
    old = run({"ann": ["a", "b", "c"], **same}, num_test=2)
    new = run({"ann": ["a", "b", "d"], **same}, num_test=2)
    before, now = answers(old, [1, 2, 3, 4, 5, 6]), answers(new, [7, 8, 9, 10, 11, 12])
    found = compared(tmp_path, before, now, new)
    assert len(found) == 2
    assert found.champion.offsets.tolist() == [0, 2, 4]
    assert found.champion.values.tolist() == [3, 4, 5, 6]
    assert found.challenger.values.tolist() == [9, 10, 11, 12]


def test_answers_of_deleted_bundles_are_removed(tmp_path: Path) -> None:
    events = run({"ann": ["a", "b"]})
    for version in ("one", "two"):
        (tmp_path / f"bundle-{version}").mkdir()
        write_answers(tmp_path, version, answers(events, [1]))
    (tmp_path / "bundle-one").rmdir()
    (tmp_path / "bundle-three").mkdir()
    write_answers(tmp_path, "three", answers(events, [1]))
    assert not answers_file(tmp_path, "one").exists()
    assert answers_file(tmp_path, "two").exists()
    assert answers_file(tmp_path, "three").exists()
