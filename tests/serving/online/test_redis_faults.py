"""A Redis that is killed, frozen, slow, full, or not the one that was meant."""

import logging
import os
import threading
import time
from collections import deque
from contextlib import suppress
from random import Random

import pytest

from serving.online.redis_connection import StoreUnreachableError
from serving.online.redis_store import RedisStore
from serving.online.store import StoreError
from tests.serving.online.redis_server import SlowWire
from tests.serving.online.test_redis_store import event, items_of, record
from tests.serving.server.running import wait_for

TIMEOUT_MS = 100
NUM_KILLS = int(os.environ.get("RECSYS_REDIS_KILLS", "5"))


def again(call):
    """Wait until a store that was away answers."""

    def answer():
        try:
            return [call()]
        except StoreUnreachableError:
            return None

    return wait_for(answer)[0]


def seconds_of(call):
    begin = time.monotonic()
    with pytest.raises(StoreUnreachableError):
        call()
    return time.monotonic() - begin


def test_a_frozen_redis_costs_one_wait_a_pause(start_redis):
    redis = start_redis()
    # Long enough that a busy machine is not taken for a frozen Redis.
    store = RedisStore.open(redis.url, 500, slow_timeout_ms=1_000)
    store.add_events([event(1)])
    redis.freeze()
    limit = 0.5
    assert 0.9 * limit < seconds_of(lambda: store.visitor("ann", 5)) < 4 * limit
    # Without the pause these would take a hundred limits.
    calls = [lambda: store.visitor("ann", 5), lambda: store.add_events([event(2)])]
    assert sum(seconds_of(call) for call in calls * 50) < 10 * limit
    with pytest.raises(StoreUnreachableError, match=r"within 500 ms.*tried again in \d\.\d s"):
        store.visitor("ann", 5)


def test_nothing_acknowledged_is_lost_when_redis_is_killed_at_any_moment(start_redis):
    redis = start_redis()
    store = RedisStore.open(redis.url, 1_000, slow_timeout_ms=5_000)
    random = Random(5)
    acknowledged, number = [], 0
    for _ in range(NUM_KILLS):
        killer = threading.Timer(random.uniform(0, 0.05), redis.kill)
        killer.start()
        with suppress(StoreError):
            while True:
                some = [event(number + i) for i in range(random.randrange(1, 50))]
                number += len(some)
                assert all(store.add_events(some))
                acknowledged += some
        killer.join()
        redis.start()
        # A batch that was not acknowledged may be there; sent again it is stored once.
        store = RedisStore.open(redis.url, 1_000, slow_timeout_ms=5_000)
        store.add_events(some)
        acknowledged += some
    assert [found for _, found in store.events_after(0, 10**6)] == acknowledged


def test_a_full_redis_stores_a_batch_whole_or_not_at_all(start_redis):
    redis = start_redis("--maxmemory", "3mb", "--maxmemory-policy", "noeviction")
    store = RedisStore.open(redis.url, 1_000, slow_timeout_ms=5_000)
    stored, full = 0, ""
    while not full:
        batch = [event(stored + i, user_id=f"user-{stored + i}") for i in range(50)]
        try:
            store.add_events(batch)
            stored += 50
        except StoreError as error:
            full = str(error)
    assert "is full: raise its maxmemory" in full
    # Less than that batch may still fit.
    for write in (
        lambda number: store.add_requests([record(number, 5)]),
        lambda number: store.change_items({f"i{number}": True}),
    ):
        with pytest.raises(StoreError, match="is full"):
            deque(map(write, range(10_000)), maxlen=0)
    # It is there all the same: reads go on, and so do writes once there is room.
    assert len(store.events_after(0, 100_000)) == stored
    assert items_of(store.visitor("user-7", 5)) == ["item-7"]
    store.remove_old(10**12, 0)
    assert store.add_events(batch) == [True] * 50


def test_a_wrong_or_missing_password_is_refused_at_once(start_redis):
    redis = start_redis("--requirepass", "right")
    for secret in ("", ":wrong@"):
        with pytest.raises(StoreError, match="refuses the name and password in the URL") as failed:
            RedisStore.open(redis.url.replace("//", f"//{secret}"))
        assert "wrong@" not in str(failed.value)
    assert RedisStore.open(redis.url.replace("//", "//:right@")).add_events([event(1)]) == [True]


def test_a_store_opens_without_its_redis_and_finds_it_later(start_redis, caplog):
    redis = start_redis()
    redis.kill()
    with caplog.at_level(logging.WARNING, "recsys.serving"):
        store = RedisStore.open(redis.url, TIMEOUT_MS)
    assert [line.message for line in caplog.records] == ["store_unreachable"]
    redis.start()
    assert again(lambda: store.add_events([event(1)])) == [True]
    with caplog.at_level(logging.WARNING, "recsys.serving"):
        RedisStore.open("redis://127.0.0.1:9/0", TIMEOUT_MS)
    assert "cannot be reached, is it running" in caplog.records[-1].fields["error"]


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (["--appendfsync", "always"], []),
        (["--appendfsync", "everysec"], ["appendfsync everysec"]),
        (["--appendonly", "no"], ["appendonly no"]),
        (["--maxmemory-policy", "allkeys-lru"], ["maxmemory-policy allkeys-lru"]),
    ],
)
def test_settings_by_which_events_may_be_lost_are_logged(start_redis, caplog, options, settings):
    redis = start_redis(*options)
    with caplog.at_level(logging.WARNING, "recsys.serving"):
        store = RedisStore.open(redis.url, 1_000)
        store.visitor("ann", 5)
        assert not caplog.records
        for _ in range(2):
            store.add_events([event(1)])
    assert [line.fields["setting"] for line in caplog.records] == settings


def test_scripts_that_redis_forgot_are_brought_again(start_redis):
    redis = start_redis()
    store = RedisStore.open(redis.url, 1_000)
    store.add_events([event(1)])
    redis.ask(b"SCRIPT FLUSH")
    assert items_of(store.visitor("ann", 5)) == ["item-1"]


def refusal_of(store):
    with pytest.raises(StoreUnreachableError) as failed:
        store.visitor("ann", 5)
    return str(failed.value)


def test_a_reply_that_comes_byte_by_byte_is_given_up_at_the_limit(start_redis):
    # Each byte is well within the limit, the reply is not.
    slow = SlowWire(start_redis().port, TIMEOUT_MS / 4 / 1_000)
    url = f"redis://127.0.0.1:{slow.port}/0"
    store = RedisStore.open(url, TIMEOUT_MS, slow_timeout_ms=TIMEOUT_MS)
    wait_for(lambda: "tried again" not in refusal_of(store))
    assert "did not answer within 100 ms" in refusal_of(store)
    slow.close()
