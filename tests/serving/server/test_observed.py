"""What a running server says of itself on the page for Prometheus."""

import socket
import urllib.request

from prometheus_client.parser import text_string_to_metric_families


def test_metrics_count_what_the_server_answered(shared):
    def counted():
        with urllib.request.urlopen(shared.url + "/metrics", timeout=10) as reply:
            page = reply.read().decode()
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
        }

    before = counted()
    assert shared.get("/v1/recommend", {"user_id": "nobody-here"})[0] == 200
    assert shared.get("/v1/recommend", {"k": 0})[0] == 422
    with socket.create_connection(("127.0.0.1", shared.port), timeout=10) as client:
        client.sendall(b"GET / HTTP/1.1\r\nx-large: " + b"x" * (40 << 10))
        assert client.recv(64).startswith(b"HTTP/1.1 431 ")
    after = counted()

    def grown(*key):
        return after[key] - before.get(key, 0)

    assert grown("recsys_requests_total", "/v1/recommend", "200") == 1
    assert grown("recsys_requests_total", "/v1/recommend", "422") == 1
    assert grown("recsys_stage_seconds_count", "total") == 1
    assert grown("recsys_degraded_total", "unknown_user") == 1
    assert grown("recsys_queue_seconds_count") == 2
    assert grown("recsys_refused_total", "headers") == 1
    assert after["recsys_workers_ready",] == after["recsys_workers_wanted",] == 2
    assert after["recsys_connections",] >= 1
