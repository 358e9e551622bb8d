"""Which of the champion's evaluated answers stand for it, and what its bundle answers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pipelines.config.operation import ReleaseConfig
from pipelines.publishing.same_queries import (
    RunEvents,
    SameQueries,
    answers_file,
    build_answers,
    same_queries,
    write_answers,
)
from recsys.data.dataset import Sequences
from serving.bundle.manifest import CURRENT, publish
from serving.bundle.write import write_bundle
from serving.recommend import Recommender
from serving.schemas import Context, Request
from tests.pipelines.publishing.gate.planted import with_users
from tests.serving.synthetic_bundle import SyntheticSize, synthetic_parts

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


def test_users_with_the_same_held_out_item_are_paired_by_their_ids(tmp_path):
    old = run({"ann": ["a", "b", "c"], "ben": ["b", "a", "d"], "cat": ["a", "c"]})
    # Rows differ: another user and another item came first. Ben took one more.
    new = run(
        {"abe": ["a", "aa"], "ann": ["a", "b", "c"], "ben": ["b", "a", "d", "a"], "cat": ["a", "c"]}
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


def test_a_user_counts_only_if_all_held_out_items_are_the_same(tmp_path):
    same = {"ben": ["a", "b", "c"], "cat": ["b", "c", "d"]}
    old = run({"ann": ["a", "b", "c"], **same}, num_test=2)
    new = run({"ann": ["a", "b", "d"], **same}, num_test=2)
    before, now = answers(old, [1, 2, 3, 4, 5, 6]), answers(new, [7, 8, 9, 10, 11, 12])
    found = compared(tmp_path, before, now, new)
    assert len(found) == 2
    assert found.champion.offsets.tolist() == [0, 2, 4]
    assert found.champion.values.tolist() == [3, 4, 5, 6]
    assert found.challenger.values.tolist() == [9, 10, 11, 12]


def test_answers_of_deleted_bundles_are_removed(tmp_path):
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


@pytest.mark.parametrize("timed", [True, False])
def test_a_champion_without_answers_is_asked_by_its_bundle_for_what_it_does_not_know(
    tmp_path, timed
):
    """The held-out event of the last of three users is in the bundle, the others' came later."""
    (tmp_path / "parts").mkdir()
    parts = synthetic_parts(tmp_path / "parts", SyntheticSize())
    parts = parts if timed else with_users(parts, times=None)
    write_bundle(tmp_path, parts, version="v1")
    publish(tmp_path, "v1")
    champion = Recommender.load(tmp_path / CURRENT)
    users, names = champion.bundle.users, champion.bundle.catalogue.item_ids
    known = [[names[item] for item in users.history(row).tolist()] for row in (1, 2, 3)]
    new = [next(f"item-{n}" for n in range(1, 41) if f"item-{n}" not in one) for one in known[:2]]
    events = run({"user-1": [*known[0], new[0]], "user-2": [*known[1], new[1]], "user-3": known[2]})
    now = None
    if timed:
        now = users.newest_time + 9
        times = np.asarray(users.times)[users.offsets[1] : users.offsets[4]]
        times = np.insert(times, np.cumsum([len(one) for one in known[:2]]), now)
    sequences = replace(events.sequences, times=times if timed else None)
    events = events._replace(sequences=sequences)
    asked = answers(events, [5, None, 2])
    found = same_queries(asked, events, tmp_path, "v1", config=CONFIG, seed=0)
    assert found.by_bundle
    assert found.challenger.values.tolist() == [5, 0]
    assert found.num_events.tolist() == [len(one) for one in known[:2]]
    assert 0 < found.ahead < 0.1
    for place, rank in enumerate(found.champion.values.tolist()):
        context = Context(unix_time=now)
        request = Request(user_id=f"user-{1 + place}", k=CONFIG.depth, context=context)
        listed = [item.item_id for item in champion.make(request, seed=0).reply.items]
        assert rank == (listed.index(new[place]) + 1 if new[place] in listed else 0)
    # Of events without times nothing can be newer than a bundle with times, and the reverse.
    times = None if timed else np.arange(len(sequences.item_rows))
    other = events._replace(sequences=replace(sequences, times=times))
    assert len(same_queries(asked, other, tmp_path, "v1", config=CONFIG, seed=0)) == 0
