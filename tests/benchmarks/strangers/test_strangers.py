"""The pure parts of the strangers' benchmark."""

from pathlib import Path

import pytest

from pipelines.datasets.fetch import Fetched
from tests.benchmarks.strangers import sets
from tests.benchmarks.strangers.peers import SETTINGS, Fitted, Matrix
from tests.benchmarks.strangers.sets import SETS, cut
from tests.recsys.testing.tables import write_tiny_tables

TWO_TASTES = {
    f"u{user}": [f"i{item}" for item in range(12) if item % 2 == user % 2 and item != user % 12]
    for user in range(24)
}
"""Even users take even items, odd ones odd items, each all but one."""


@pytest.mark.parametrize("name", ["EASE", "BM25 item-kNN"])
def test_a_peer_finds_the_one_item_of_the_users_taste_that_is_missing(name):
    matrix = Matrix(TWO_TASTES)
    lists = Fitted(name, matrix, SETTINGS[name][0]).lists(["u0", "u3"], leave_out=True)
    assert lists["u0"][0] == "i0"
    assert lists["u3"][0] == "i3"


def test_cuts_share_no_user_and_leave_out_the_last_event(monkeypatch, tmp_path: Path):
    write_tiny_tables(tmp_path)
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
