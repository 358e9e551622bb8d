"""The Python clients: typed replies, safe retries, tables."""

import asyncio
import subprocess
import sys

import httpx2
import pytest

from serving.client import AsyncClient, Client, ServerError, UnreachableError


def scripted(*replies):
    """A transport that gives these replies, or raises them, and keeps what was sent."""
    sent, left = [], list(replies)

    def answer(request):
        sent.append(request)
        reply = left.pop(0)
        if isinstance(reply, Exception):
            raise reply
        status, content, headers = reply
        return httpx2.Response(status, json=content, headers=headers)

    return httpx2.MockTransport(answer), sent


STORED = (200, {"accepted": 1, "duplicates": 0}, {})
BUSY = (503, {"error": {"code": "overloaded", "message": "busy"}}, {})
FAILED = (500, {"error": {"code": "internal", "message": "a fault"}}, {})


def test_three_lines_recommend_send_an_event_and_search(shared):
    client = Client(shared.url)
    reply = client.recommend("user-2", k=3)
    client.event("user-2", reply.items[0].item_id, request_id=reply.request_id, slot=1)
    assert client.search("title 12").items[0].item_id == "item-12"
    assert reply.served_by.bundle == "v1"
    assert reply.items[0].score >= reply.items[1].score
    client.close()


@pytest.mark.parametrize(
    "first", [BUSY, (502, {}, {}), (429, {}, {"retry-after": "0"}), httpx2.ConnectError("no")]
)
def test_an_event_is_sent_again_under_its_own_id(first):
    transport, sent = scripted(first, first, STORED)
    with Client("http://x", transport=transport) as client:
        assert client.event("u", "i").accepted == 1
    assert len(sent) == 3
    assert sent[0].content == sent[1].content == sent[2].content
    assert b"event_id" in sent[0].content


@pytest.mark.parametrize("reply", [FAILED, (422, {"error": {"code": "c", "message": "m"}}, {})])
def test_what_will_not_get_better_is_not_sent_again(reply):
    transport, sent = scripted(reply)
    with Client("http://x", transport=transport) as client, pytest.raises(ServerError) as refused:
        client.recommend("u")
    assert len(sent) == 1
    assert refused.value.status == reply[0]
    assert refused.value.code == reply[1]["error"]["code"]


def test_a_page_of_a_balancer_and_a_missing_server_are_said():
    transport, _ = scripted((418, "tea", {}))
    with Client("http://x", transport=transport) as client, pytest.raises(ServerError) as refused:
        client.recommend("u")
    assert refused.value.code == "no_json"
    transport, sent = scripted(*[httpx2.ConnectError("nobody")] * 4)
    with (
        Client("http://x", transport=transport) as client,
        pytest.raises(UnreachableError, match="nobody"),
    ):
        client.recommend("u")
    assert len(sent) == 4


def test_no_attempt_begins_that_the_time_does_not_allow():
    transport, sent = scripted((503, {}, {"retry-after": "5"}))
    with Client("http://x", timeout=0.5, transport=transport) as client, pytest.raises(ServerError):
        client.recommend("u")
    assert len(sent) == 1


def test_the_asynchronous_client_does_the_same(shared):
    async def use():
        async with AsyncClient(shared.url) as client:
            replies = await asyncio.gather(*(client.recommend(f"user-{n}", k=2) for n in range(8)))
            event = await client.event("user-3", "item-3")
            return replies, event

    replies, event = asyncio.run(use())
    assert len({reply.request_id for reply in replies}) == 8
    assert event.accepted == 1


def test_many_events_go_in_several_requests():
    transport, sent = scripted(STORED, STORED, STORED)
    events = [{"user_id": "u", "item_id": "i", "event_type": "view"}] * 2_500
    with Client("http://x", transport=transport) as client:
        assert client.events(events).accepted == 3
    assert len(sent) == 3


def test_a_back_end_that_only_calls_installs_three_packages():
    program = "import sys, serving.client; print(*{name.partition('.')[0] for name in sys.modules})"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = set(run.stdout.split())
    assert {"httpx2", "orjson", "pydantic"} <= loaded
    assert not loaded & {"torch", "numpy", "polars", "scipy", "starlette", "uvicorn", "rich"}
