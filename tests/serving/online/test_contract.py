"""What every online store does, whichever it is."""

import os
import uuid

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.online import redis_store
from serving.online.events import Event
from serving.online.opening import open_store
from serving.online.store import Forgotten, RecentEvent, RequestRecord

T0 = 1_795_000_000_000
DAY = 86_400_000


@pytest.fixture(params=["sqlite", "redis"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}"
    server = request.getfixturevalue("shared_redis")
    return f"{server.url}?prefix={uuid.uuid4().hex}:"


@pytest.fixture
def open_another(url):
    opened = []

    def open_one():
        opened.append(open_store(url, timeout_ms=5_000))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(open_another):
    return open_another()


def lists_of(store, user_id="ann"):
    """All served lists of a user, newest first."""
    found = store.requests_between(0, 1 << 47, 999)
    return [one for one in found[::-1] if one.user_id == user_id]


def event(number, user_id="ann", event_type="click", at=None, **fields):
    time_ms = T0 + number if at is None else T0 + at
    return Event(
        event_id=fields.pop("event_id", f"{user_id}-{number}"),
        user_id=user_id,
        item_id=fields.pop("item_id", f"i{number}"),
        event_type=event_type,
        time_ms=time_ms,
        received_ms=fields.pop("received_ms", T0 + number),
        **fields,
    )


def record(number, at=None, user_id="ann", items=("a", "b")):
    time_ms = T0 + (number if at is None else at)
    request_id = f"{time_ms:012x}{number:020x}"
    document = orjson.dumps({"request_id": request_id, "items": [{"item_id": i} for i in items]})
    return RequestRecord(request_id, time_ms, user_id, document)


def items_of(visitor):
    return [found.item_id for found in visitor.events]


def test_an_event_is_stored_once_within_and_across_batches(store):
    first = event(1)
    again = event(1, item_id="other")
    assert store.add_events([first, event(2), again, event(2)]) == [True, True, False, False]
    assert store.add_events([event(3), again, event(4), event(3)]) == [True, False, True, False]
    assert items_of(store.visitor("ann", 10)) == ["i1", "i2", "i3", "i4"]
    # Another user's event of the same id is the same event.
    assert store.add_events([event(9, "bob", event_id="ann-1")]) == [False]


def test_a_history_is_by_time_then_arrival_and_strictly_before_a_moment(store):
    for number, at in enumerate([50, 20, 50, 10, 20, 60, 50]):
        store.add_events([event(number, at=at)])
    ordered = ["i3", "i1", "i4", "i0", "i2", "i6", "i5"]
    assert items_of(store.visitor("ann", 10)) == ordered
    assert items_of(store.visitor("ann", 3)) == ordered[-3:]
    assert items_of(store.visitor("ann", 2, before_ms=T0 + 50)) == ["i1", "i4"]
    assert items_of(store.visitor("ann", 10, before_ms=T0 + 51)) == ordered[:6]
    assert items_of(store.visitor("ann", 10, before_ms=T0 + 10)) == []
    assert store.visitor("ann", 1).events[0] == RecentEvent("i5", "click", T0 + 60)


def test_every_field_comes_back_in_the_order_of_arrival(store):
    sent = [
        event(5, value=0.1 + 0.2, request_id="0" * 32, slot=3, domain="d", session_id="s"),
        event(2, "b\x00b \u00e9\U0001f600\n", item_id="\x00", value=-1e-300),
        event(9, event_type="impression", value=5.0),
        event(1, at=-1_000, value=float(2**60)),
    ]
    store.add_events(sent[:3])
    store.add_events(sent[3:])
    exported = store.events_after(0, 10)
    assert [found for _, found in exported] == sent
    assert items_of(store.visitor(sent[1].user_id, 5)) == ["\x00"]
    places = [place for place, _ in exported]
    assert places == sorted(set(places))
    assert places[0] > 0
    assert store.events_after(places[1], 1) == exported[2:3]
    assert store.events_after(places[-1], 5) == []


def test_forgetting_removes_everything_of_a_user_and_nothing_of_others(store):
    for user in ("ann", "bob"):
        store.add_events([event(n, user) for n in range(7)])
        store.add_events([event(8, user, "impression")])
    store.add_requests([record(1), record(2, at=3 * DAY), record(3, user_id="bob")])
    store.add_requests([record(4, user_id=None)])
    now = T0 + 4 * DAY
    assert store.forget("ann", now) == Forgotten(8, 2)
    assert items_of(store.visitor("ann", 99)) == []
    assert store.visitor("ann", 9).forgotten_ms == now
    assert store.visitor("bob", 9).forgotten_ms is None
    assert store.shown_items("ann", 0) == []
    assert store.request(record(1).request_id) is None
    assert lists_of(store) == []
    assert len(store.visitor("bob", 99).events) == 7
    assert {found.user_id for found in store.requests_between(0, now, 9)} == {"bob", None}
    assert {found.user_id for _, found in store.events_after(0, 99)} == {"bob"}
    assert [store.forgotten().moment(user) for user in ("ann", "bob")] == [now, None]
    # What the user does afterwards is theirs again; the moment stays, and a later one counts.
    assert store.add_events([event(5 * DAY)]) == [True]
    assert len(store.visitor("ann", 9).events) == 1
    assert store.visitor("ann", 9).forgotten_ms == now
    assert store.forget("ann", now + 2 * DAY) == Forgotten(1, 0)
    assert store.visitor("ann", 9).forgotten_ms == now + 2 * DAY
    assert store.forget("nobody", T0) == Forgotten(0, 0)


def test_what_another_server_holds_of_a_forgotten_user_is_not_kept(open_another, monkeypatch):
    monkeypatch.setattr(redis_store, "EVENTS_A_SCRIPT", 2)
    holding, forgetting = open_another(), open_another()
    holding.add_events([event(1), event(2, "bob")])
    assert forgetting.forget("ann", T0 + 10) == Forgotten(1, 0)
    # It received them before, and stores them now.
    sent = [event(1), event(10), event(3, "bob"), event(11), event(2, "bob")]
    assert holding.add_events(sent) == [False, False, True, True, False]
    lists = [record(5), record(10), record(12), record(6, user_id="bob"), record(7, user_id=None)]
    holding.add_requests(lists)
    for store in (holding, forgetting):
        assert items_of(store.visitor("ann", 9)) == ["i11"]
        assert items_of(store.visitor("bob", 9)) == ["i2", "i3"]
        assert lists_of(store) == [record(12)]
        assert len(store.requests_between(0, T0 + DAY, 9)) == 3


def test_a_slow_clock_moves_no_moment_of_forgetting_back(open_another):
    fast, slow = open_another(), open_another()
    fast.forget("ann", T0 + 100)
    slow.forget("bob", T0 + 50)
    slow.forget("ann", T0)
    assert [fast.visitor(user, 1).forgotten_ms for user in ("ann", "bob")] == [T0 + 100, T0 + 50]
    assert fast.forgotten().moment("ann") == T0 + 100
    sent = [event(51), event(100), event(101), event(50, "bob"), event(51, "bob")]
    assert slow.add_events(sent) == [False, False, True, False, True]


def test_shown_items_are_impressions_and_served_lists_since_a_moment(store):
    seen = [event(n, event_type="impression") for n in (10, 20, 15)]
    store.add_events([*seen, event(30)])
    store.add_requests([record(1, 10, items=["x"]), record(2, 15, items=["y", "i20"])])
    store.add_requests([record(3, 20, "bob", ["z"]), record(4, 20, None), record(5, 2 * DAY)])
    assert set(store.shown_items("ann", T0 + 15)) == {"i15", "i20", "y", "a", "b"}
    assert set(store.shown_items("ann", T0 + DAY)) == {"a", "b"}
    assert len(store.shown_items("ann", 0)) == len(set(store.shown_items("ann", 0)))


def test_served_lists_are_found_by_id_by_user_and_by_time_across_days(store):
    records = [record(number, number * DAY // 2) for number in range(5)]
    nobodys = record(9, DAY, None)
    store.add_requests([records[3], records[0], nobodys, *records[1:3], records[4], records[0]])
    assert [store.request(each.request_id) for each in records] == records
    for unknown in ("f" * 32, "0" * 32, f"{T0:012x}{77:020x}", "no id", ""):
        assert store.request(unknown) is None
    assert lists_of(store) == records[::-1]
    since, before = T0 + DAY // 2, T0 + 2 * DAY
    between = [records[1], records[2], nobodys, records[3]]
    assert store.requests_between(since, before, 9) == between
    pages, after = [], ""
    while page := store.requests_between(since, before, 2, after_id=after):
        pages += page
        after = page[-1].request_id
    assert pages == between


def test_changes_of_items_have_a_version(store, open_another):
    assert store.change_items({"hat \x00": True, "cap": True}) == 1
    assert store.hidden_items() == (1, ["cap", "hat \x00"])
    assert store.change_items({"cap": False, "none": False}) == 2
    other = open_another()
    assert other.hidden_items() == (2, ["hat \x00"])
    assert other.visitor(None, 5).items_version == other.visitor("ann", 5).items_version == 2
    assert other.change_items({"hat": True}) == 3
    assert store.hidden_items() == (3, ["hat", "hat \x00"])


def test_retention_removes_what_arrived_before(store):
    store.add_events([event(n, at=n // 2) for n in range(2_500)])
    store.add_events([event(5_000, at=1_100)])
    store.add_requests([record(1), record(2, DAY), record(3, 2 * DAY)])
    store.remove_old(T0 + 2_400, T0)
    assert len(store.events_after(0, 9_999)) == 101
    assert items_of(store.visitor("ann", 999))[0] == "i5000"
    assert len(store.requests_between(0, T0 + 9 * DAY, 9)) == 3
    store.remove_old(0, T0 + 2 * DAY)
    assert store.requests_between(0, T0 + 9 * DAY, 9) == [record(3, 2 * DAY)]
    assert lists_of(store) == [record(3, 2 * DAY)]
    assert store.request(record(1).request_id) is None
    # An id that was removed may be sent again.
    assert store.add_events([event(1), event(2_450)]) == [True, False]


def test_a_forked_process_reads_and_writes_beside_its_parent(store):
    store.add_events([event(1)])
    child = os.fork()
    try:
        for number in range(50):
            assert len(store.visitor("ann", 5).events) == 1
            store.add_events([event(number, "parent" if child else "child")])
    finally:
        if child == 0:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert [len(store.visitor(user, 99).events) for user in ("parent", "child")] == [50, 50]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.text(min_size=1, max_size=40), st.text(min_size=1, max_size=40))
def test_any_text_is_an_id(store, user_id, item_id):
    sent = event(1, user_id, item_id=item_id, event_id=uuid.uuid4().hex, session_id=item_id)
    assert store.add_events([sent]) == [True]
    assert store.visitor(user_id, 1).events[0].item_id == item_id
    assert store.events_after(0, 10_000)[-1][1] == sent
    store.add_requests([record(1, user_id=user_id, items=[item_id])])
    assert item_id in store.shown_items(user_id, 0)
    store.change_items({item_id: True})
    assert item_id in store.hidden_items()[1]
    assert store.forget(user_id, T0 - 1).num_events >= 1
    assert store.visitor(user_id, 1).forgotten_ms == T0 - 1


def test_the_newest_refusals_count_until_they_are_undone_or_forgotten(store):
    def refused():
        return [(one.item_id, one.event_type) for one in store.visitor("ann", 1).refused]

    kinds = ["hide", "click", "dislike", "hide", "undo", "hide"]
    items = ["a", "b", "b", "c", "a", "b"]
    some = [
        event(n, event_type=kind, item_id=item)
        for n, (kind, item) in enumerate(zip(kinds, items, strict=True))
    ]
    store.add_events(some)
    assert refused() == [("c", "hide"), ("b", "hide")]
    assert items_of(store.visitor("ann", 9)) == ["b"]
    store.add_events([event(10 + n, event_type="hide") for n in range(10_000)])
    assert [item for item, _ in refused()] == [f"i{10 + n}" for n in range(9_000, 10_000)]
    assert items_of(store.visitor("ann", 9)) == ["b"]
    assert store.forget("ann", T0 + 20_000).num_events == 10_006
    assert refused() == []
