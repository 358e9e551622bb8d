"""Servers whose store is a Redis: they share it, and make lists without it."""

import time

import pytest

from serving.client import Client, ServerError
from tests.serving.online.redis_server import RedisServer, needs_redis
from tests.serving.server.running import running, wait_for

pytestmark = needs_redis
STORE = "failed_store"


@pytest.fixture
def redis(tmp_path):
    server = RedisServer(tmp_path)
    yield server
    server.thaw()
    server.kill()


@pytest.fixture
def serve(released, tmp_path, redis):
    """Start a server on the store."""

    def start(name):
        log = tmp_path / f"{name}.log"
        return running(released, log, store=redis.url, allow_admin="true")

    return start


def listed(reply):
    return [item.item_id for item in reply.items]


def codes(reply):
    return [one.code for one in reply.degraded]


def test_what_one_server_is_sent_counts_on_another(serve):
    with serve("one") as one, serve("two") as two, Client(one.url) as a, Client(two.url) as b:
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


@pytest.mark.parametrize("fault", ["freeze", "kill"])
def test_lists_are_made_without_a_redis_and_follow_again_when_it_is_back(serve, redis, fault):
    with serve("server") as server, Client(server.url, retries=0, timeout=20) as client:
        client.event("ann", "item-3")
        assert STORE not in codes(client.recommend("ann", k=5))
        getattr(redis, fault)()
        begin = time.monotonic()
        replies = [client.recommend("ann", k=5) for _ in range(100)]
        # A wait of 50 ms a worker and second, not one a list.
        assert time.monotonic() - begin < 100 * 0.05
        assert all(STORE in codes(reply) and len(reply.items) == 5 for reply in replies)
        with pytest.raises(ServerError) as refused:
            client.event("ann", "item-8", event_id="late")
        assert (refused.value.status, refused.value.code) == (503, "store_failed")
        redis.thaw() if fault == "freeze" else redis.start()
        wait_for(lambda: all(STORE not in codes(client.recommend("ann", k=5)) for _ in range(10)))
        # What was acknowledged is still there; a busy machine may miss a read's 50 ms.
        wait_for(lambda: client.recommend("ann", k=5).fallback is None)
