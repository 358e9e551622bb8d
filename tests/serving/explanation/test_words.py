"""Explanations in words, over random worlds: every reason is one that the score has."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.configuration.file import check_configuration
from serving.explanation.removal import LOST, MAX_JOINT, MAX_LATEST, MAX_STRONGEST
from serving.explanation.served_list import explain_list
from serving.explanation.words import BY_SOURCE, list_shared
from serving.list_record import write_record
from serving.recommend import Recommender
from serving.schemas import Request
from tests.serving.synthetic_bundle import SyntheticSize, write_synthetic_bundle

SIZES = {
    "plain": SyntheticSize(seed=3),
    "blend": SyntheticSize(seed=4, history_models=True),
    "ranker": SyntheticSize(seed=5, history_models=True, ranker=True),
}


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    folder = tmp_path_factory.mktemp("worlds")
    return {
        name: Recommender.load(write_synthetic_bundle(folder / name, "v1", size))
        for name, size in SIZES.items()
    }


def served(recommender, **fields):
    made = recommender.make(Request(**fields))
    record = SimpleNamespace(
        request_id=made.reply.request_id, time_ms=0, document=write_record(recommender, made)
    )
    return made, record


def explained(recommender, missing=None, names_history=True, **fields):
    _, record = served(recommender, **fields)
    return explain_list(recommender, record, missing, names_history=names_history)


def row_of(recommender, item_id):
    return recommender.bundle.catalogue.row_of(item_id)


def place_without(recommender, request, rows, item_id):
    """The place by score, of the list that is made without items of the history."""
    moment = {"now_ms": 1_700_000_000_000}
    made = recommender.make(
        request.model_copy(update={"k": 200}), without=np.array(rows, np.int64), **moment
    )
    rows = made.ranked.item_rows[:200].tolist()
    row = row_of(recommender, item_id)
    return rows.index(row) + 1 if row in rows else LOST


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    world=st.sampled_from(sorted(SIZES)),
    session=st.lists(st.integers(1, 40), min_size=1, max_size=8, unique=True),
)
def test_every_reason_is_one_that_the_score_has(worlds, world, session):
    recommender = worlds[world]
    request = Request(session=[f"item-{row}" for row in session], k=6)
    made = recommender.make(request, now_ms=1_700_000_000_000)
    record = SimpleNamespace(
        request_id=made.reply.request_id, time_ms=0, document=write_record(recommender, made)
    )
    explanation = explain_list(recommender, record, None, names_history=True)
    assert explanation.num_left_out == len(session)
    for slot in explanation.items:
        said = {name for name in BY_SOURCE if f"({name}, " in slot.sentence}
        assert said <= {name for name, share in slot.contributions.items() if share > 0}
        assert slot.place == place_without(recommender, request, [], slot.item_id)
        named = [row_of(recommender, one.item_id) for one in slot.because or []]
        assert set(named) <= set(session)
        if not named:
            assert "Without" not in slot.sentence
            assert slot.place_without is None
            continue
        after = place_without(recommender, request, named, slot.item_id)
        assert after == slot.place_without > slot.place
        for one, row in zip(slot.because, named, strict=True):
            assert one.place == place_without(recommender, request, [row], slot.item_id)
        shared = re.search(r"It shares with (.+?) \u00fc.*?: (.+)\.", slot.sentence)
        if shared:
            row = int(shared[1].removeprefix("Title "))
            own = row_of(recommender, slot.item_id)
            assert set(shared[2].split(", ")) <= set(list_shared(own, row, recommender.bundle))


def test_the_item_that_a_list_hangs_on_is_named(worlds):
    """Nobody took both odd and even items, so without the one even item no even one is near."""
    alone = {"surfaces": {"home": {"sources": {"item_to_item": 1.0}}}}
    bundle = worlds["plain"].bundle
    recommender = Recommender(bundle, configuration=check_configuration(alone))
    found = explained(recommender, session=["item-3", "item-5", "item-4", "item-7"], k=10)
    even = [slot for slot in found.items if int(slot.item_id.removeprefix("item-")) % 2 == 0]
    assert even
    for slot in even:
        assert [one.item_id for one in slot.because] == ["item-4"]
        assert slot.place_without == LOST
        assert "Without Title 4 " in slot.sentence
        assert "behind place 200" in slot.sentence
    assert any(slot.because for slot in found.items if slot not in even)


def test_work_is_bounded_and_a_why_not_measures_nothing(worlds):
    recommender, made = worlds["plain"], []
    make = recommender.make

    class Counted:
        def __getattr__(self, name):
            return getattr(recommender, name)

        def make(self, *arguments, **named):
            made.append(1)
            return make(*arguments, **named)

    session = [f"item-{1 + row % 40}" for row in range(400)]
    _, record = served(recommender, session=session, k=10)
    explanation = explain_list(Counted(), record, None, names_history=True)
    assert explanation.num_left_out <= MAX_LATEST + MAX_STRONGEST
    assert len(made) <= 2 + MAX_LATEST + MAX_STRONGEST + MAX_JOINT
    made.clear()
    why_not = explain_list(Counted(), record, "item-1", names_history=True)
    assert len(made) <= 2
    assert why_not.num_left_out is None


@pytest.mark.parametrize(
    ("fields", "item_id", "says"),
    [
        ({"session": ["item-4"]}, "item-4", "is not in the list because the visitor has had it"),
        ({"session": ["item-4"], "exclude": ["item-6"]}, "item-6", "because the request leaves"),
        ({"session": ["item-4"], "k": 1}, "item-5", "was considered, but other items come before"),
        ({"session": ["item-4"]}, "none", "none is not in the list because bundle v1 does not"),
    ],
)
def test_why_not_is_a_sentence(worlds, fields, item_id, says):
    found = explained(worlds["plain"], item_id, **fields).why_not
    assert says in found.sentence
    assert found.sentence.startswith((found.title or item_id).split("\n")[0])
