"""Servers whose store is a Redis: they share it, and make lists without it."""

import time

import pytest

from serving.client import Client, ServerError
from tests.serving.online.redis_server import RedisServer, needs_redis
from tests.serving.server.running import RunningServer, wait_for

pytestmark = needs_redis
STORE = "failed_store"


@pytest.fixture(scope="module")
def redis(tmp_path_factory):
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.thaw()
    server.kill()


@pytest.fixture(scope="module")
def servers(released, redis, tmp_path_factory):
    """Two servers on the store, which start side by side."""
    folder = tmp_path_factory.mktemp("servers")
    settings = {"store": redis.url, "allow_admin": "true"}
    started = [RunningServer(released, folder / name, **settings) for name in ("one", "two")]
    yield [server.until_ready() for server in started]
    for server in started:
        server.stop()


def listed(reply):
    return [item.item_id for item in reply.items]


def codes(reply):
    return [one.code for one in reply.degraded]


def test_what_one_server_is_sent_counts_on_another(servers):
    with Client(servers[0].url) as a, Client(servers[1].url) as b:
        first = b.recommend("clicker", k=5)
        seen, hidden = listed(first)[:2]
        a.event("clicker", seen, "click", request_id=first.request_id, slot=1)
        a.hide(hidden)
        for _ in range(10):
            after = b.recommend("clicker", k=5)
            assert after.fallback is None
            assert not {seen, hidden} & set(listed(after))
        explained = wait_for(lambda: explanation(a, first.request_id))
        assert [slot.item_id for slot in explained.items] == listed(first)
        assert b.forget("clicker").removed.events == 1
        assert a.recommend("clicker", k=5).fallback == "popularity"


def explanation(client, request_id):
    try:
        return client.explain(request_id)
    except ServerError:
        return None


def stored(client, user):
    """Store an event; False while the server still holds off from a Redis that failed."""
    try:
        return client.event(user, "item-3")
    except ServerError:
        return False


@pytest.mark.parametrize("fault", ["freeze", "kill"])
def test_lists_are_made_without_a_redis_and_follow_again_when_it_is_back(servers, redis, fault):
    user = f"ann-{fault}"
    with Client(servers[0].url, retries=0, timeout=20) as client:
        wait_for(lambda: stored(client, user))
        assert STORE not in codes(client.recommend(user, k=5))
        getattr(redis, fault)()
        begin = time.monotonic()
        replies = [client.recommend(user, k=5) for _ in range(100)]
        # A wait of 50 ms a worker and second, not one a list.
        assert time.monotonic() - begin < 100 * 0.05
        assert all(STORE in codes(reply) and len(reply.items) == 5 for reply in replies)
        with pytest.raises(ServerError) as refused:
            client.event(user, "item-8", event_id="late")
        assert (refused.value.status, refused.value.code) == (503, "store_failed")
        redis.thaw() if fault == "freeze" else redis.start()
        wait_for(lambda: all(STORE not in codes(client.recommend(user, k=5)) for _ in range(10)))
        # What was acknowledged is still there; a busy machine may miss a read's 50 ms.
        wait_for(lambda: client.recommend(user, k=5).fallback is None)
        wait_for(lambda: stored(client, user))
