"""Peers of a backtest: what they read and write, the two that need no environment, and crashes.

The log is small enough for slow truths: 40 users, 15 items, a warm-up and three judged steps.
"""

import itertools
import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks.peers import seeds
from tests.benchmarks.peers.check_metrics import largest_differences, ours
from tests.benchmarks.peers.counting import ease, popularity
from tests.benchmarks.peers.environments import ENVIRONMENTS_OF_PEERS, commands
from tests.benchmarks.peers.folder import KEPT, Backtest
from tests.benchmarks.peers.named import PEERS, PROJECT, Peer, named
from tests.benchmarks.peers.ranking import Scored, best, check, filled, ndcg
from tests.benchmarks.peers.run import main, most_popular, python_of, row_of, run
from tests.benchmarks.peers.table import (
    Line,
    exceptions,
    failures,
    line_of,
    names_of,
    notes_of,
    rows_of,
)

NUM_USERS, NUM_ITEMS, DAY = 40, 15, 86_400
CUTS = (60 * DAY, 70 * DAY, 80 * DAY, 90 * DAY, 100 * DAY)
HERE = "tests.benchmarks.peers.test_peers"


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


def fails_in_the_second_step(known, **_):
    if known.begin == CUTS[2]:
        raise RuntimeError("out of ideas")
    return popularity(known, days=7)


def ends_its_process(known, **_):
    if known.begin == CUTS[2]:
        os._exit(9)
    return popularity(known, days=7)


def lists_the_history(known, **_):
    class Fitted:
        def lists(self, queries):
            return queries.taken.indices[queries.taken.indptr[:-1]].astype(np.int64)[:, None]

    return Fitted()


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


def test_a_folder_without_events_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"has no events\.npz; give the folder"):
        Backtest(tmp_path)


def test_popularity_counts_the_last_days_before_the_step(backtest):
    queries = backtest.queries(1)
    lists = popularity(backtest.known_before(queries.begin), days=7).lists(queries)
    recent: Counter[int] = Counter()
    whole: Counter[int] = Counter()
    for own in log():
        whole.update(item for time, item in own if time < queries.begin)
        recent.update(item for time, item in own if queries.begin - 7 * DAY <= time < queries.begin)
    for query in range(len(queries)):
        taken = set(queries.taken[query].indices)
        left = [item for item in whole if item not in taken]
        left.sort(key=lambda item: (-recent[item], -whole[item], item))
        assert lists[query][: len(left)].tolist() == left
        assert not lists[query][len(left) :].any()


def test_ease_is_the_ridge_regression_of_each_item_on_the_others(backtest):
    queries = backtest.queries(1)
    known = backtest.known_before(queries.begin)
    taken = known.taken.toarray().astype(np.float64)[:, 1:NUM_ITEMS]
    weights = np.zeros((NUM_ITEMS - 1, NUM_ITEMS - 1))
    for item in range(NUM_ITEMS - 1):
        others = np.delete(np.arange(NUM_ITEMS - 1), item)
        x, y = taken[:, others], taken[:, item]
        weights[others, item] = np.linalg.solve(x.T @ x + 20 * np.eye(len(others)), x.T @ y)
    lists = ease(known, l2=20.0).lists(queries)
    histories = queries.taken.toarray()[:, 1:NUM_ITEMS]
    scores = histories @ weights
    scores[histories > 0] = -np.inf
    for query in range(len(queries)):
        if not histories[query].any():
            assert not lists[query].any()
            continue
        left = np.isfinite(scores[query]).sum()
        found = scores[query][lists[query][:left] - 1]
        np.testing.assert_allclose(found, np.sort(scores[query])[::-1][:left], atol=1e-5)


def test_short_lists_are_filled_with_what_is_popular_and_new(backtest):
    queries = backtest.queries(2)
    popular = most_popular(backtest, queries.begin)
    lists = np.zeros((len(queries), KEPT), np.int64)
    first = next(
        item
        for item in popular
        if item not in queries.taken[0].indices and queries.candidates[item]
    )
    last = popular[queries.candidates[popular] & ~np.isin(popular, queries.taken[0].indices)][-1]
    lists[0, 0] = last
    full = filled(lists, queries, popular)
    assert full[0][:2].tolist() == [last, first]
    assert NUM_ITEMS not in full
    check(full, queries)
    for query in range(len(queries)):
        taken = set(queries.taken[query].indices)
        assert set(full[query]) - {0} == set(popular[queries.candidates[popular]]) - taken


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


def test_the_best_items_have_ties_by_row_and_nothing_that_has_no_score():
    scores = np.array([[-np.inf, 1, 3, 3, -np.inf]], np.float32)
    assert best(scores, 5).tolist() == [[2, 3, 1, 0, 0]]
    assert best(scores, 7).tolist() == [[2, 3, 1, 0, 0, 0, 0]]


def test_what_tuning_goes_by_is_our_ndcg(backtest):
    queries = backtest.queries(1)
    lists = popularity(backtest.known_before(queries.begin), days=7).lists(queries)
    assert ndcg(lists, queries) == pytest.approx(ours(lists, queries)["ndcg@10"], abs=1e-12)


def test_a_peer_that_raises_has_a_row_that_says_so_and_the_next_step_follows(backtest):
    peer = Peer(function=f"{HERE}:fails_in_the_second_step")
    run(backtest, "fails", peer, {}, [1, 2, 3])
    assert [backtest.lists(step, "fails").exists() for step in (1, 2, 3)] == [True, False, True]
    text = backtest.error(2, "fails").read_text()
    line = fails_in_the_second_step.__code__.co_firstlineno + 2
    assert text == f"RuntimeError: out of ideas (test_peers.py:{line})\n"
    assert failures(backtest) == [f"step 2, peer.fails: {text.strip()}"]
    assert "step 2, peer.fails" in notes_of(backtest, [])


def test_a_peer_whose_process_ends_has_a_row_that_says_so_and_the_next_step_follows(backtest):
    main([str(backtest.path), "--peer", f"{HERE}:ends_its_process"])
    row = "ends_its_process"
    assert [backtest.lists(step, row).exists() for step in (1, 2, 3)] == [True, False, True]
    assert backtest.error(2, row).read_text() == "the process ended with code 9\n"


def test_lists_that_break_the_rules_are_a_failure(backtest):
    run(backtest, "seen", Peer(function=f"{HERE}:lists_the_history"), {}, [3])
    assert "ValueError" in backtest.error(3, "seen").read_text()


def test_a_step_that_has_its_file_is_skipped_and_a_failure_is_tried_once_more(backtest):
    peer = PEERS["popularity_7d"]
    run(backtest, "popular", peer, {"days": 7}, [1])
    before = backtest.lists(1, "popular").stat().st_mtime_ns
    backtest.write_error(2, "popular", "no memory")
    run(backtest, "popular", peer, {"days": 7}, [1, 2])
    assert backtest.lists(1, "popular").stat().st_mtime_ns == before
    assert backtest.lists(2, "popular").exists()
    assert not backtest.error(2, "popular").exists()


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


def test_a_table_holds_what_is_served_to_the_best_peer_of_all_steps(backtest):
    run(backtest, "popular", PEERS["popularity_7d"], {"days": 7}, [1, 2, 3])
    assert names_of(backtest) == ["peer.popular"]
    measured = line_of(backtest, "peer.popular")
    assert measured.num_steps == 3
    lines = [
        measured,
        Line(
            name="full.served",
            ndcg=2 * measured.ndcg,
            recall=0.5,
            fit_seconds=1,
            age_days=0,
            num_steps=3,
        ),
        Line(name="peer.lucky", ndcg=9.0, recall=0.5, fit_seconds=1, age_days=0, num_steps=1),
    ]
    assert exceptions(lines) == ["peer.lucky has 1 of 3 steps"]
    old = replace(measured, age_days=3.34)
    assert exceptions([old]) == [
        "peer.popular's models are 3.3 days old on average as a step begins"
    ]
    rows = {row.name: row for row in rows_of(lines)}
    assert next(iter(rows)) == "peer.lucky: ndcg@10"
    assert rows["full.served: ndcg@10"].peer == "peer.popular"
    assert rows["full.served: ndcg@10"].ratio == pytest.approx(2)


def test_settings_stand_below_the_table(backtest):
    path = backtest.choice("ease_tuned")
    path.parent.mkdir()
    found = {"settings": {"l2": 90.04}, "ndcg@10": 0.2, "usual_ndcg@10": 0.1, "num_trials": 4}
    path.write_text(json.dumps({**found, "seconds": 61.2}))
    settings = json.dumps({"days": 3})
    main([str(backtest.path), "--peer", "popularity_7d", "--steps", "1", "--settings", settings])
    assert backtest.lists(1, "popularity_7d").exists()
    notes = notes_of(backtest, [])
    assert "- popularity_7d: days 3\n" in notes + "\n"
    assert "- ease_tuned: l2 90; 4 trials of Optuna in 61 s on the warm-up" in notes


def test_differences_are_the_largest_of_all_steps():
    mine = {"steps": {"1": {"ndcg@10": 0.5}, "2": {"ndcg@10": 0.25}}}
    theirs = {"steps": {"1": {"ndcg@10": 0.5}, "2": {"ndcg@10": 0.5}}}
    assert largest_differences(mine, theirs) == {"ndcg@10": 0.25}


def test_unknown_names_and_missing_environments_say_what_to_do(tmp_path):
    with pytest.raises(ValueError, match="no peer is called 'eese'; there are popularity_7d"):
        named("eese")
    with pytest.raises(ValueError, match=r"peers\.environments rectools --folder"):
        python_of(named("als"), tmp_path)
    assert python_of(named("ease"), tmp_path)
    with pytest.raises(ValueError, match=r"rectools/bin/python; make it with"):
        python_of(named("ease"), tmp_path, tune=True)
    assert row_of("my.module:MyPeer", True) == "MyPeer_tuned"
    for peer in PEERS.values():
        assert peer.environment == PROJECT or peer.environment in ENVIRONMENTS_OF_PEERS
    assert commands("rectools", tmp_path)[1][-1] == "safetensors"


def test_a_peer_that_gives_no_score_lists_nothing(backtest):
    queries = backtest.queries(1)
    nothing = Scored(
        lambda queries, block: np.full(
            (block.stop - block.start, NUM_ITEMS + 1), -np.inf, np.float32
        )
    )
    assert not nothing.lists(queries).any()


def test_seeds_of_one_replay_stand_side_by_side_and_other_data_is_refused():
    def of_seed(seed, value, data="a"):
        row = {"policy": "full", "row": "served", "metrics": {"ndcg@10": value}}
        return {"seed": seed, "data_digest": data, "steps": [1], "summary": [row]}

    rows = {
        row.name: row for row in seeds.rows_of([of_seed(0, 0.1), of_seed(1, 0.3)], 0.05, "peer")
    }
    assert rows["full.served: mean"].value == 0.2
    assert rows["full.served: mean"].ratio == pytest.approx(4)
    assert rows["full.served: sd"].value == round(0.02**0.5, 4)
    assert rows["full.served: seed 1"].value == 0.3
    same = seeds.rows_of([of_seed(0, 0.1), of_seed(1, 0.1)], 0.05, "peer")
    assert [(row.name, row.value) for row in same] == [("full.served: mean", 0.1)]
    with pytest.raises(ValueError, match="seed 1 replays other data"):
        seeds.rows_of([of_seed(0, 0.1), of_seed(1, 0.3, "b")], 0.05, "peer")
