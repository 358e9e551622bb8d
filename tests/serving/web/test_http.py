import asyncio
import time

import pytest

from serving.settings import Settings
from serving.web.http import RefusedError, parsed_json, read_body

SETTINGS = Settings(body_timeout_seconds=0.05, max_body_bytes=100)


def read(receive, headers=()):
    body = asyncio.run(read_body(dict(headers), receive, SETTINGS))
    return parsed_json("application/json", "identity", body)


def messages(*bodies):
    """Send these chunks, the last one ending the body."""
    waiting = [
        {"type": "http.request", "body": body, "more_body": number < len(bodies) - 1}
        for number, body in enumerate(bodies)
    ]

    async def receive():
        return waiting.pop(0)

    return receive


def test_chunks_are_put_together():
    assert read(messages(b'{"k"', b": 1", b"}")) == {"k": 1}


def test_body_that_does_not_arrive_in_time_is_408():
    async def receive():
        await asyncio.sleep(0.02)
        return {"type": "http.request", "body": b" ", "more_body": True}

    begin = time.perf_counter()
    with pytest.raises(RefusedError, match=r"did not arrive within 0\.05 s") as refused:
        read(receive)
    assert refused.value.status == 408
    assert time.perf_counter() - begin < 5


def test_client_that_goes_away_gets_nothing():
    async def receive():
        return {"type": "http.disconnect"}

    with pytest.raises(ConnectionResetError):
        read(receive)


def test_undeclared_large_body_is_refused_after_the_limit():
    taken = []

    async def receive():
        taken.append(1)
        return {"type": "http.request", "body": b" " * 30, "more_body": True}

    with pytest.raises(RefusedError, match="at most 100 bytes") as refused:
        read(receive)
    assert refused.value.status == 413
    assert len(taken) == 4


def test_declared_large_body_is_refused_unread():
    async def receive():
        raise AssertionError("the body was read")

    with pytest.raises(RefusedError, match="at most 100 bytes"):
        read(receive, [(b"content-length", b"101")])
