"""Peers of a backtest: what they read and write, the two that need no environment, and crashes.

The log is small enough for slow truths: 40 users, 15 items, a warm-up and three judged steps.
"""

import itertools
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks.peers.folder import KEPT, Backtest
from tests.benchmarks.peers.named import PEERS
from tests.benchmarks.peers.ranking import check
from tests.benchmarks.peers.run import run
from tests.benchmarks.peers.table import line_of

NUM_USERS, NUM_ITEMS, DAY = 40, 15, 86_400
CUTS = (60 * DAY, 70 * DAY, 80 * DAY, 90 * DAY, 100 * DAY)


def log() -> list[list[tuple[int, int]]]:
    """Times and items of every user, in order; item 15 comes late, some users too."""
    rng = np.random.default_rng(7)
    users = []
    for user in range(NUM_USERS):
        begin = 75 * DAY if user % 10 == 0 else 0
        times = np.sort(rng.integers(begin, 100 * DAY, 14))
        items = rng.permutation(NUM_ITEMS - 1)[:14] + 1
        users.append([(int(time), int(item)) for time, item in zip(times, items, strict=True)])
    for user in range(3):
        users[user].append((85 * DAY + user, NUM_ITEMS))
        users[user].sort()
    return users


def write_backtest(path: Path) -> Path:
    """Write the folder of a backtest with loops that anyone can follow."""
    users = log()
    events = [event for own in users for event in own]
    offsets = np.cumsum([0, *(len(own) for own in users)])
    path.mkdir(parents=True)
    np.savez(
        path / "events.npz",
        item_rows=np.array([item for _, item in events]),
        times=np.array([time for time, _ in events]),
        offsets=offsets,
        num_item_rows=NUM_ITEMS + 1,
    )
    for step, (begin, end) in enumerate(itertools.pairwise(CUTS)):
        queries = [
            (user, int(offsets[user]) + place, time, item)
            for user, own in enumerate(users)
            for place, (time, item) in enumerate(own)
            if begin <= time < end
        ]
        candidates = np.zeros(NUM_ITEMS + 1, bool)
        candidates[[item for time, item in events if time < begin]] = True
        folder = path / "steps" / str(step)
        folder.mkdir(parents=True)
        np.savez(
            folder / "queries.npz",
            begin=begin,
            end=end,
            user_rows=np.array([query[0] for query in queries]),
            history_ends=np.array([query[1] for query in queries]),
            moments=np.array([query[2] for query in queries]),
            targets_values=np.array([query[3] for query in queries]),
            targets_offsets=np.arange(len(queries) + 1),
            candidates=candidates,
        )
    return path


@pytest.fixture
def backtest(tmp_path):
    return Backtest(write_backtest(tmp_path / "backtest"))


def test_a_query_has_the_users_events_strictly_before_its_moment(backtest):
    users = log()
    assert backtest.steps() == [1, 2, 3]
    queries = backtest.queries(2)
    for query, (user, moment) in enumerate(zip(queries.user_rows, queries.moments, strict=True)):
        begin, end = queries.history_offsets[query : query + 2]
        before = [(time, item) for time, item in users[user] if time < moment]
        assert queries.history_rows[begin:end].tolist() == [item for _, item in before]
        assert queries.history_times[begin:end].tolist() == [time for time, _ in before]
        assert set(queries.taken[query].indices) == {item for _, item in before}


def test_models_know_the_events_before_the_step_alone(backtest):
    known = backtest.known_before(CUTS[1])
    wanted = [(user, i) for user, own in enumerate(log()) for time, i in own if time < CUTS[1]]
    assert list(zip(known.user_rows, known.item_rows, strict=True)) == wanted


def test_lists_are_held_to_the_rules(backtest):
    queries = backtest.queries(1)
    new = next(item for item in range(1, NUM_ITEMS) if item not in queries.taken[0].indices)
    lists = np.zeros((len(queries), 3), np.int64)
    lists[0, :2] = new
    with pytest.raises(ValueError, match="holds an item twice"):
        check(lists, queries)
    lists[0, :2] = [NUM_ITEMS, 0]
    with pytest.raises(ValueError, match=f"item row {NUM_ITEMS} is no candidate"):
        check(lists, queries)
    held = next(query for query in range(len(queries)) if queries.taken[query].nnz)
    lists[0, 0] = 0
    lists[held, 0] = queries.taken[held].indices[0]
    with pytest.raises(ValueError, match="in the query's history"):
        check(lists, queries)
    with pytest.raises(ValueError, match="1 lists for"):
        check(lists[:1], queries)


def test_a_model_that_is_kept_knows_nothing_of_later_steps(backtest):
    run(backtest, "kept", PEERS["popularity_7d"], {"days": 7}, [1, 2, 3], refit_every=2)
    run(backtest, "fresh", PEERS["popularity_7d"], {"days": 7}, [1, 2, 3])
    for step, known_at in ((1, CUTS[1]), (2, CUTS[1]), (3, CUTS[3])):
        with np.load(backtest.lists(step, "kept")) as file:
            assert int(file["known_at"]) == known_at
            assert file["item_rows"].shape == (len(backtest.queries(step)), KEPT)
            assert file["item_rows"].dtype == np.int32
    assert line_of(backtest, "peer.kept").age_days == pytest.approx(10 / 3)
    assert line_of(backtest, "peer.fresh").age_days == 0
