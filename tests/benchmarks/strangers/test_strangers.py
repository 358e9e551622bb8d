"""The pure parts of the strangers' benchmark."""

import math
from pathlib import Path

import polars as pl
import pytest

from pipelines.datasets.fetch import Fetched
from tests.benchmarks.strangers import sets
from tests.benchmarks.strangers.benchmark_strangers import judged, rows_of, table_of
from tests.benchmarks.strangers.measures import recall_and_ndcg, without
from tests.benchmarks.strangers.peers import SETTINGS, Fitted, Matrix, measure, own_peer
from tests.benchmarks.strangers.sets import SETS, Log, StrangersSet, cut, parted, write_files
from tests.benchmarks.strangers.worlds import RepeatWorld, log_of
from tests.recsys.testing.tables import write_tables

TWO_TASTES = {
    f"u{user}": [f"i{item}" for item in range(12) if item % 2 == user % 2 and item != user % 12]
    for user in range(24)
}
"""Even users take even items, odd ones odd items, each all but one."""
SMALL = RepeatWorld(
    seed=3, num_users=40, num_items=60, num_scenes=4, mean_events=30.0,
    repeat_share=0.5, memory=5.0, follow_share=0.5,
)  # fmt: skip


def test_an_item_counts_by_its_place_and_users_without_a_list_count_nothing():
    lists = {"a": ["x", "y"], "b": ["z"], "c": [*map(str, range(10)), "q"]}
    target = {"a": "y", "b": "x", "c": "q", "d": "x"}
    recall, ndcg = recall_and_ndcg(lists, target)
    assert recall == 1 / 4
    assert ndcg == pytest.approx(1 / math.log2(3) / 4)


@pytest.mark.parametrize("name", ["EASE", "BM25 item-kNN"])
def test_a_peer_finds_the_one_item_of_the_users_taste_that_is_missing(name):
    matrix = Matrix(TWO_TASTES)
    lists = Fitted(name, matrix, SETTINGS[name][0]).lists(["u0", "u3"], leave_out=True)
    assert lists["u0"][0] == "i0"
    assert lists["u3"][0] == "i3"


def test_own_items_are_those_that_a_user_took_most_and_last():
    matrix = Matrix({"a": ["x", "y", "y", "z"], "b": ["x"]})
    assert Fitted("own items", matrix, 0.0).lists(["a"], leave_out=False)["a"][:3] == [
        "y",
        "z",
        "x",
    ]
    assert Fitted("own items", matrix, 0.1).lists(["a"], leave_out=False)["a"][0] == "z"


def test_a_history_is_left_out_of_lists_only_where_it_is_to_be():
    matrix = Matrix(TWO_TASTES)
    fitted = Fitted("popularity", matrix, 0.0)
    assert not set(fitted.lists(["u1"], leave_out=True)["u1"][:7]) & set(TWO_TASTES["u1"])
    assert set(fitted.lists(["u1"], leave_out=False)["u1"]) & set(TWO_TASTES["u1"])
    assert without({"a": ["x", "y"]}, {"a": ["x"]}) == {"a": ["y"]}


def test_the_setting_and_the_history_are_chosen_on_the_last_training_event():
    """Setting 2 alone finds the last training event, an old one, so that 2 is what is measured."""
    history = {"a": ["x", "y", "x"], "b": ["x", "y", "x"]}

    class Stub:
        def __init__(self, whole, setting):
            self.whole, self.setting = whole, setting

        def lists(self, users, *, leave_out):
            item = "x" if self.setting == 2 and not leave_out else "other"
            return {user: ["hit" if self.whole else item] for user in users}

    def fit(given, setting):
        return Stub(given is history, setting)

    targets = {"new": {"a": "hit"}, "next": {"a": "hit", "b": "x"}}
    assert measure(fit, (1, 2), history, targets) == {"new": [1.0, 1.0], "next": [0.5, 0.5]}


def test_peers_are_measured_end_to_end():
    log = parted(log_of(SMALL))
    targets = {"new": log.new_targets(), "next": log.target}
    found = measure(own_peer("own items"), SETTINGS["own items"], log.history, targets)
    popular = measure(own_peer("popularity"), (0.0,), log.history, targets)
    assert found["next"][1] > popular["next"][1]


def test_a_world_is_the_same_again_and_repeats_as_often_as_it_should():
    log = log_of(SMALL)
    assert log.equals(log_of(SMALL))
    ordered = log.group_by("user", maintain_order=True).agg("item", "time")
    assert all(times == sorted(times) for times in ordered["time"].to_list())
    again = sum(len(items) - len(set(items)) for items in ordered["item"].to_list())
    assert 0.5 < again / log.height < 0.8


def test_the_last_event_of_each_user_is_kept_back_and_users_of_one_event_left_out():
    events = pl.DataFrame({"user": ["a", "a", "b", "c", "c"], "item": ["x", "y", "x", "z", "z"]})
    log = parted(events)
    assert log.history == {"a": ["x"], "c": ["z"]}
    assert log.target == {"a": "y", "c": "z"}
    assert log.new_targets() == {"a": "y"}


def test_files_hold_the_rest_under_the_strangers_names():
    events = pl.DataFrame({"user": ["a", "a", "b", "b"], "item": ["x", "y", "x", "z"]})
    items = pl.DataFrame({"item": ["x"], "title": ["Tea"], "labels": ["drink|hot"]})
    names = {"user": "kunde", "item": "artikel", "title": "titel"}
    files = write_files(Log(events, items), names)
    assert files["log.csv"].to_dict(as_series=False) == {
        "kunde": ["a", "b"],
        "artikel": ["x", "x"],
    }
    assert files["catalogue.csv"].columns == ["artikel", "titel", "labels"]
    assert list(write_files(Log(events), names)) == ["log.csv"]


def test_cuts_share_no_user_and_leave_out_the_last_event(monkeypatch, tmp_path: Path):
    write_tables("synthetic-tiny", tmp_path)
    monkeypatch.setattr(sets, "find_dataset", lambda name: name)
    monkeypatch.setattr(sets, "fetch", lambda _: Fetched(directory=tmp_path, source="a test"))
    few = cut("synthetic-tiny", part=(0, 500), keep=("time",), texts=True)
    others = cut("synthetic-tiny", part=(500, 1000), keep=("order",), whole=True)
    whole = cut("synthetic-tiny", part=(0, 500), whole=True)
    assert few.items is not None
    assert few.items.columns == ["item", "title", "labels"]
    assert few.events.columns == ["user", "item", "time"]
    assert not set(few.events["user"]) & set(others.events["user"])
    assert whole.events.height == few.events.height + whole.events["user"].n_unique()


def test_no_set_that_is_held_out_is_cut_from_users_that_others_were_developed_on():
    parts = {
        name: one.make.keywords["part"]
        for name, one in SETS.items()
        if one.source != "drawn" and name != "films-1m-held-out"
    }
    for name, (first, end) in parts.items():
        for other, (begin, last) in parts.items():
            if SETS[name].held_out and not SETS[other].held_out:
                apart = SETS[name].source != SETS[other].source
                assert apart or last <= first or end <= begin, (name, other)


def test_lists_are_judged_without_the_history_and_where_items_repeat_as_they_are():
    log = parted(pl.DataFrame({"user": ["a"] * 3 + ["b"] * 3, "item": list("xyzxyx")}))
    one = StrangersSet(has="", make=lambda: Log(pl.DataFrame()), repeats=True)
    found = judged(one, log, {"a": ["x", "z"], "b": ["x", "z"]})
    assert found["new"] == [1.0, 1.0]
    assert found["next"] == [1.0, round((1 / math.log2(3) + 1) / 2, 4)]


def test_the_table_has_the_ratio_to_the_best_peer():
    numbers = {
        "music": {
            "events": 1_000,
            "peers": {"EASE": {"new": [0.2, 0.1]}, "ALS": {"new": [0.3, 0.05]}},
            "ours": {
                "first_bundle_s": 9.5,
                "total_s": 70.0,
                "measured": {"new": [0.25, 0.12]},
            },
        }
    }
    (line,) = table_of(numbers).splitlines()[2:]
    assert ".2500 / .1200" in line
    assert line.endswith("| 1.20 |")
    (row,) = rows_of({"music": numbers["music"]})
    assert row.peer == "EASE 0.1000"
    assert row.met
