import numpy as np
import orjson
import pytest

from features.point_in_time import FEATURES
from serving.bundle.load import load_bundle
from serving.list_record import write_record
from serving.online.store import RecentEvent, StoreError, Visitor
from serving.query import hydrate
from serving.recommend import Recommender
from serving.schemas import Context, Degraded, Request
from serving.settings import ServingOptions
from serving.surfaces import HOME
from tests.serving.synthetic_bundle import SyntheticSize, write_synthetic_bundle


class MemoryStore:
    """What a test says that the store says."""

    def __init__(self):
        self.visitors, self.changed, self.version, self.fails = {}, {}, 0, False
        self.asked = []

    def visitor(self, user_id, limit, before_ms=None):
        if self.fails:
            raise StoreError("the store is away")
        self.asked.append((user_id, limit, before_ms))
        found = self.visitors.get(user_id, ())
        before = [event for event in found if before_ms is None or event.time_ms < before_ms]
        return Visitor(before[-limit:], None, self.version)

    def hidden_items(self):
        return self.version, list(self.changed)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    size = SyntheticSize(context_features=tuple(FEATURES))
    return load_bundle(write_synthetic_bundle(tmp_path_factory.mktemp("live"), "v1", size))


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def recommender(bundle, store):
    recommender = Recommender(bundle)
    recommender.connect(lambda: store, keeps_lists=True)
    return recommender


def events(*pairs):
    return [RecentEvent(item_id, "view", time_ms) for item_id, time_ms in pairs]


def rows(bundle, *item_ids):
    return [bundle.catalogue.row_of(item_id) for item_id in item_ids]


def test_events_follow_the_history_of_the_bundle(bundle):
    newest = bundle.users.newest_time
    user = bundle.users.row_of("user-2")
    visitor = Visitor(events(("item-3", 1_000 * (newest + 10)), ("item-8", 1_000 * (newest + 20))))
    query = hydrate(Request(user_id="user-2"), bundle, HOME, visitor, newest + 60)
    np.testing.assert_array_equal(query.history[:-2], bundle.users.history(user))
    assert query.history[-2:].tolist() == rows(bundle, "item-3", "item-8")
    assert query.times[-2:].tolist() == [newest + 10, newest + 20]
    assert set(query.history.tolist()) <= set(query.seen.tolist())


def test_a_late_event_is_put_where_it_belongs(bundle):
    user = bundle.users.row_of("user-2")
    known, times = bundle.users.history(user).tolist(), bundle.users.events(user).times
    late = next(row for row in range(1, bundle.num_item_rows) if row not in known)
    moment, place = int(times[-1]) + 60, 1
    while times[place] == times[place - 1]:
        place += 1
    # Just after the event before this place.
    pair = (bundle.catalogue.item_ids[late], 1_000 * int(times[place - 1]) + 1)
    request = Request(user_id="user-2", context=Context(unix_time=moment))
    query = hydrate(request, bundle, HOME, Visitor(events(pair)))
    assert query.history.tolist() == [*known[:place], late, *known[place:]]
    assert query.times.tolist() == sorted([*times.tolist(), int(times[place - 1])])


def test_a_forgotten_user_is_a_new_one(bundle):
    newest = bundle.users.newest_time
    visitor = Visitor((), forgotten_ms=1_000 * (newest + 1))
    query = hydrate(Request(user_id="user-2"), bundle, HOME, visitor, newest + 60)
    assert len(query.seen) == 0
    assert query.categorical["user"] == 0
    times = bundle.users.events(bundle.users.row_of("user-2")).times
    later = Visitor((), forgotten_ms=1_000 * int(times[-1]))
    query = hydrate(Request(user_id="user-2"), bundle, HOME, later, newest + 60)
    assert query.times.tolist() == [second for second in times.tolist() if second >= times[-1]]


def test_lists_are_made_without_a_store_that_fails(recommender, store, bundle):
    request = Request(user_id="user-2", context=Context(unix_time=bundle.users.newest_time + 9))
    whole = recommender.answer(request)
    store.fails = True
    reply = recommender.answer(request)
    assert reply.items == whole.items
    assert Degraded("failed_store") in reply.degraded
    assert Degraded("failed_store") not in whole.degraded


def test_a_store_that_cannot_be_opened_is_tried_again_after_a_while(bundle, store, monkeypatch):
    attempts = []

    def opener():
        attempts.append(1)
        if len(attempts) == 1:
            raise StoreError("nobody listens")
        return store

    clock = [100.0]
    monkeypatch.setattr("serving.live.time.monotonic", lambda: clock[0])
    recommender = Recommender(bundle)
    recommender.connect(opener)
    for _ in range(3):
        assert Degraded("failed_store") in recommender.answer(Request()).degraded
    assert len(attempts) == 1
    clock[0] += 2
    assert Degraded("failed_store") not in recommender.answer(Request()).degraded


def test_a_record_makes_the_same_list_again(recommender, store, bundle):
    """What the record holds is enough to compute the list again, to the last bit."""
    newest = bundle.users.newest_time
    store.visitors["user-2"] = events(("item-3", 1_000 * newest), ("item-8", 1_000 * newest + 5))
    made = recommender.make(Request(user_id="user-2", k=7, session=["item-5"]))
    record = orjson.loads(write_record(recommender, made))
    assert record["request"] == {"user_id": "user-2", "k": 7, "session": ["item-5"]}
    assert record["digest"] == bundle.digest
    assert record["timings_ms"] == made.reply.timings_ms
    assert [item["item_id"] for item in record["items"]] == [
        item.item_id for item in made.reply.items
    ]
    store.visitors.clear()
    again = recommender.make(
        Request.model_validate(record["request"]),
        now_ms=record["unix_ms"],
        visitor=Visitor([RecentEvent(*event) for event in record["live"]]),
    )
    assert again.reply.items == made.reply.items


def test_an_event_between_two_pages_changes_the_next_list_but_not_the_next_page(
    recommender, bundle, store
):
    """Also where so much happens meanwhile that a history has no place for what was before."""
    t0 = 1_000 * bundle.users.newest_time
    store.visitors["visitor"] = before = events(("item-3", t0 - 9_000), ("item-8", t0))

    def page(cursor, at):
        reply = recommender.answer(Request(user_id="visitor", k=4, cursor=cursor), now_ms=at)
        return [(item.item_id, item.score) for item in reply.items], reply.cursor

    first, cursor = page("start", t0)
    second, _ = page(cursor, t0 + 60_000)
    clicks = [(f"item-{1 + n % 30}", t0 + 1_000 + n) for n in range(300)]
    for meanwhile in (clicks[:1], clicks):
        store.visitors["visitor"] = [*before, *events(*meanwhile)]
        assert page(cursor, t0 + 60_000)[0] == second
        assert page("start", t0 + 60_000)[0] != first


@pytest.mark.parametrize("surface", ["home", "session", "related"])
def test_hidden_and_excluded_items_are_no_candidates(recommender, store, surface):
    chosen = ["item-9", "item-2", "item-14", "item-7", "item-5"]
    store.changed, store.version = {"item-2": True}, 1
    asked = {"home": {"user_id": "user-2"}, "session": {"session": ["item-3"]}}
    asked["related"] = {"item_id": "item-3"}
    of = {"surface": surface, "candidates": chosen, "exclude": ["item-14"], "k": 5}
    shown = recommender.answer(Request(**of, **asked[surface])).items
    assert {item.item_id for item in shown} == {"item-9", "item-7", "item-5"}


def record_of(recommender, **request):
    made = recommender.make(Request(user_id="user-2", **request))
    return orjson.loads(write_record(recommender, made))


def test_a_record_names_hidden_items_and_of_many_only_their_version(
    recommender, store, monkeypatch
):
    store.version = 3
    store.changed = {f"item-{number}": True for number in (2, 9, 999)}
    assert record_of(recommender)["hidden"] == ["item-2", "item-9"]
    monkeypatch.setattr("serving.live.MAX_HIDDEN", 1)
    store.version = 4
    record = record_of(recommender)
    assert record["items_version"] == 4
    assert "hidden" not in record


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_share_of_the_records_has_features(bundle, share):
    recommender = Recommender(bundle, ServingOptions(log_features_share=share))
    kept = sum("features" in record_of(recommender) for _ in range(400))
    assert abs(kept / 400 - share) < 0.1
    assert kept == 400 * share or 0 < share < 1


def test_features_of_a_record_are_what_the_list_was_made_of(bundle):
    recommender = Recommender(bundle, ServingOptions(log_features_share=1))
    made = recommender.make(Request(user_id="user-2", k=6))
    record = orjson.loads(write_record(recommender, made))
    features = record["features"]
    assert features["query"] == made.query.categorical
    assert features["history"][0] == len(made.query.history)
