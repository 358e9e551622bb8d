"""The store in Redis: what is its own beside the contract of all stores."""

import hashlib
import uuid
from dataclasses import replace

import orjson
import pytest

from serving.online import redis_store
from serving.online.events import Event
from serving.online.redis_store import MAX_RECENT, RedisStore
from serving.online.store import Forgotten, RequestRecord, StoreError
from tests.serving.online.test_contract import lists_of


@pytest.fixture
def url(shared_redis):
    return f"{shared_redis.url}?prefix={uuid.uuid4().hex}:"


@pytest.fixture
def store(url):
    store = RedisStore.open(url, 2_000, slow_timeout_ms=20_000)
    yield store
    store.close()


def event(number, user_id="ann", item_id=None, time_ms=None, event_type="click", **fields):
    """An event that arrives at millisecond 1,000 + its number."""
    return Event(
        event_id=f"{user_id}-{number}",
        user_id=user_id,
        item_id=item_id or f"item-{number}",
        event_type=event_type,
        time_ms=number if time_ms is None else time_ms,
        received_ms=1_000 + number,
        **fields,
    )


def record(number, time_ms, user_id="ann", items=("a", "b")):
    request_id = f"{time_ms:012x}{number:020x}"
    document = {"request_id": request_id, "items": [{"item_id": item} for item in items]}
    return RequestRecord(request_id, time_ms, user_id, orjson.dumps(document))


def items_of(visitor):
    return [event.item_id for event in visitor.events]


def keys_of(url):
    """Names of all keys behind the prefix of a URL."""
    import redis

    address, _, prefix = url.partition("?prefix=")
    with redis.Redis.from_url(address, decode_responses=True) as client:
        return {key.removeprefix(prefix) for key in client.scan_iter(f"{prefix}*", count=1_000)}


def test_a_history_keeps_the_newest_and_the_export_everything(store, monkeypatch):
    monkeypatch.setattr(redis_store, "READ_A_CALL", 300)
    num_events = MAX_RECENT + 700
    store.add_events([event(number) for number in range(num_events)])
    store.add_events([event(num_events, time_ms=5)])
    recent = store.visitor("ann", num_events).events
    assert len(recent) == MAX_RECENT
    assert (recent[0].time_ms, recent[-1].time_ms) == (700, num_events - 1)
    exported = store.events_after(0, num_events + 5)
    assert len(exported) == num_events + 1
    places = [place for place, _ in exported]
    assert places == sorted(set(places))
    assert store.events_after(places[-3], 10) == exported[-2:]
    assert store.events_after(places[3], 2) == exported[4:6]


def test_forgetting_leaves_no_key_that_names_the_user(store, url, monkeypatch):
    monkeypatch.setattr(redis_store, "REMOVED_A_SCRIPT", 3)
    store.add_events([event(number) for number in range(7)])
    store.add_events([event(7, event_type="impression"), event(0, user_id="bob")])
    store.add_requests([record(number, 100 + number) for number in range(4)])
    store.add_requests([record(9, 100, user_id="bob")])
    assert store.forget("ann", 5_000) == Forgotten(8, 4)
    assert not [key for key in keys_of(url) if "ann" in key]
    assert [found.user_id for _, found in store.events_after(0, 99)] == ["bob"]
    assert [found.user_id for found in store.requests_between(0, 999, 99)] == ["bob"]
    (forgotten_ms,) = store.forgotten().moments.values()
    assert store.visitor("ann", 5).forgotten_ms == forgotten_ms == 5_000
    # Somebody new of the same name.
    assert store.add_events([event(1), event(5_001)]) == [False, True]
    assert items_of(store.visitor("ann", 5)) == ["item-5001"]
    assert store.forget("nobody", 1) == Forgotten(0, 0)


def test_a_store_of_an_earlier_version_keeps_whom_it_forgot_and_what_it_hid(url):
    """Its entries are SHA-256 of the id without a key, and it has no set of hidden items."""
    import redis

    RedisStore.open(url, 2_000).close()
    address, _, prefix = url.partition("?prefix=")
    with redis.Redis.from_url(address) as client:
        client.hset(f"{prefix}forgotten", hashlib.sha256(b"-7").hexdigest(), 1_005)
        client.hset(f"{prefix}items", mapping={"a": b"[true,{}]", "b": b"[false,{}]"})
        client.set(f"{prefix}items_version", 4)
        client.delete(f"{prefix}user_key")
    store = RedisStore.open(url, 2_000)
    assert store.visitor("-7", 1).forgotten_ms == 1_005
    assert store.hidden_items() == (4, ["a"])
    assert store.add_events([event(5, "-7"), event(6, "-7")]) == [False, True]
    store.forget("ann", 9)
    found = store.forgotten()
    assert [found.moment(user) for user in ("-7", "ann", "bob")] == [1_005, 9, None]
    with redis.Redis.from_url(address) as client:
        # A server of the earlier version hides another one.
        client.hset(f"{prefix}items", "b", b"[true,{}]")
        client.incr(f"{prefix}items_version")
    assert store.hidden_items() == (5, ["a", "b"])
    store.close()


def test_the_environments_key_is_not_kept_in_redis(url, monkeypatch):
    monkeypatch.setenv("RECSYS_USER_KEY", "of the environment")
    store = RedisStore.open(url, 2_000)
    store.forget("4711", 1_000)
    assert "user_key" not in keys_of(url)
    assert store.visitor("4711", 1).forgotten_ms == 1_000
    monkeypatch.delenv("RECSYS_USER_KEY")
    with pytest.raises(StoreError, match=r"forgotten users under the key .*RECSYS_USER_KEY"):
        RedisStore.open(url, 2_000)
    store.close()


def test_old_events_and_lists_leave_every_key(store, url, monkeypatch):
    monkeypatch.setattr(redis_store, "REMOVED_A_SCRIPT", 3)
    before = keys_of(url)
    users = ("ann", "bob")
    store.add_events([event(number, user_id=user) for number in range(5) for user in users])
    store.add_events([event(9, event_type="impression"), event(10, time_ms=3)])
    store.add_requests([record(1, 50), record(2, 60), record(3, 50, user_id=None)])
    store.remove_old(1_004, 60)
    assert items_of(store.visitor("ann", 9)) == ["item-10", "item-4"]
    assert items_of(store.visitor("bob", 9)) == ["item-4"]
    assert [r.time_ms for r in store.requests_between(0, 999, 9)] == [60]
    assert lists_of(store) == [record(2, 60)]
    assert store.add_events([event(0), event(4)]) == [True, False]
    store.remove_old(9_999, 9_999)
    assert keys_of(url) == before | {"events"}
    assert store.events_after(0, 9) == []


@pytest.mark.parametrize("field", ["event_id", "user_id", "item_id", "session_id"])
def test_ids_that_are_no_text_are_refused(store, field):
    broken = replace(event(1), **{field: "\ud800"})
    with pytest.raises(StoreError, match="surrogates not allowed"):
        store.add_events([event(2), broken])
    with pytest.raises(StoreError, match="no Unicode text"):
        store.visitor("\ud800", 5)
    assert store.add_events([event(2)]) == [True]


def test_a_store_of_another_version_is_refused(url, shared_redis):
    prefix = url.partition("prefix=")[2]
    shared_redis.ask(f"SET {prefix}schema 99".encode())
    with pytest.raises(StoreError, match=r"version 99.*reads version 1.*another prefix"):
        RedisStore.open(url, 2_000)
