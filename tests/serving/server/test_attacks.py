"""Slow, huge and too many clients: others are answered, and memory and the log stay small."""

import asyncio
import json
import socket
import time

import psutil
import pytest

from tests.serving.server.running import RunningServer, post, running, wait_for


@pytest.fixture(scope="module")
def strict(released, tmp_path_factory):
    """Short deadlines, few connections and a short queue."""
    log = tmp_path_factory.mktemp("strict") / "log"
    settings = {
        "header_timeout_seconds": 1,
        "write_timeout_seconds": 1,
        "body_timeout_seconds": 1,
        "queue_ms": 40,
        "max_body_bytes": 100_000,
    }
    with running(released, log, descriptors=512, **settings) as server:
        yield server


def connected(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=10)


def test_half_open_connections_do_not_stop_others(strict):
    held = []
    try:
        for number in range(1_100):
            held.append(connected(strict))
            if number % 2:
                held[-1].sendall(b"POST /v1/recommend HTTP/1.1\r\nhost: x\r\n")
            if number % 100 == 0:
                assert strict.get("/v1/recommend", {"k": 1}, timeout=2.0)[0] == 200
        assert strict.get("/v1/recommend", {"k": 1}, timeout=2.0)[0] == 200
        # They are closed at the deadline of a head.
        wait_for(lambda: len(psutil.Process(strict.process.pid).net_connections()) < 50, 10)
    finally:
        for one in held:
            one.close()
    assert strict.log.stat().st_size < 1 << 20
    assert "Traceback" not in strict.log.read_text(), strict.log.read_text()[-3000:]


def test_slow_bodies_do_not_stop_others(strict):
    head = b"POST /v1/recommend HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    held = []
    try:
        for _ in range(600):
            held.append(connected(strict))
            held[-1].sendall(head + b"content-length: 20\r\n\r\n{")
        assert strict.get("/v1/recommend", {"k": 1}, timeout=2.0)[0] == 200
    finally:
        for one in held:
            one.close()


def test_slow_body_gets_408(strict):
    with connected(strict) as client:
        head = b"POST /v1/recommend HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        client.sendall(head + b"content-length: 20\r\n\r\n{")
        assert client.recv(1000).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\n" + b"a: " + b"x" * 40_000, b"431"),
        (b"GET /" + b"x" * 40_000, b"431"),
        (b"GET /healthz HTTP/1.1\r\n" + b"a: " + b"x" * 40_000 + b"\r\n\r\n", b"431"),
        (b"\x16\x03\x01 no http\r\n\r\n", b"400"),
        (b"POST /v1/recommend HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000000\r\n\r\n", b"413"),
    ],
    ids=["header", "path", "whole head", "not http", "body"],
)
def test_what_is_too_large_or_no_http_is_refused_early(strict, head, status):
    with connected(strict) as client:
        client.sendall(head)
        reply = b""
        while part := client.recv(10_000):
            reply += part
    assert reply.startswith(b"HTTP/1.1 " + status)
    assert json.loads(reply.partition(b"\r\n\r\n")[2])["error"]["code"]


def test_chunked_body_without_end_is_refused_at_the_limit(strict):
    with connected(strict) as client:
        client.sendall(
            b"POST /v1/recommend HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        try:
            for _ in range(1_000):
                client.sendall(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
        except OSError:
            pass
        assert strict.get("/healthz")[0] == 200


def test_reply_that_nobody_reads_is_given_up(strict):
    """A client that pipelines requests and reads nothing."""
    process = psutil.Process(strict.process.pid)
    request = b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n"
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", strict.port))
        client.settimeout(0.5)
        before = process.memory_info().rss
        try:
            for _ in range(2_000):
                client.sendall(request)
        except OSError:
            pass
        assert process.memory_info().rss - before < 64 << 20
        wait_for(lambda: not established(process, client.getsockname()[1]), 15)


def established(process, port):
    return [one for one in process.net_connections() if one.raddr and one.raddr.port == port]


def test_overload_is_refused_at_once_and_health_answers(strict):
    async def flood():
        asked = [
            post(strict.port, {"user_id": f"user-{n % 50}", "k": 20, "exclude": [f"x{n}"]})
            for n in range(300)
        ]
        flooding = asyncio.gather(*asked)
        await asyncio.sleep(0.05)
        begin = time.perf_counter()
        health = await asyncio.to_thread(strict.get, "/healthz")
        return await flooding, health, time.perf_counter() - begin

    replies, health, seconds = asyncio.run(flood())
    statuses = {status for status, _, _ in replies}
    assert statuses == {200, 503}
    refused = [(headers, body) for status, headers, body in replies if status == 503]
    assert all(headers["retry-after"] == "1" for headers, _ in refused)
    assert json.loads(refused[0][1])["error"]["code"] == "overloaded"
    assert health[0] == 200
    assert seconds < 2.0


def test_client_that_leaves_costs_no_list(strict):
    """Its job is dropped from the queue, and the connection from the table."""
    for _ in range(50):
        with connected(strict) as client:
            body = b'{"k": 100}'
            head = b"POST /v1/recommend HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            client.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body)
    assert strict.get("/v1/recommend", {"k": 1})[0] == 200
    assert "Traceback" not in strict.log.read_text(), strict.log.read_text()[-3000:]


def test_full_disk_under_the_log_stops_nobody(released):
    server = RunningServer(released, "/dev/full", log_requests="true").until_ready()
    try:
        for _ in range(20):
            assert server.get("/v1/recommend", {"k": 1})[0] == 200
        server.processes()[2][0].kill()
        wait_for(lambda: server.state()["num_restarts"] == 1)
        assert server.get("/v1/recommend", {"k": 1})[0] == 200
    finally:
        server.stop()
