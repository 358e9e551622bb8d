"""What a running server says of itself: the page for Prometheus, and spans of its requests."""

import json
import signal
import socket
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from tests.serving.server.running import SERVE, running

# In place of the exporter, which is an extra.
EXPORTER = """
import json, os, sys, types
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

class Exporter(SpanExporter):
    def __init__(self, endpoint):
        self.endpoint = endpoint

    def export(self, spans):
        with open(os.environ["SPANS"], "a") as file:
            for one in spans:
                parent = f"{one.parent.span_id:016x}" if one.parent else None
                line = {"name": one.name, "parent": parent, "to": self.endpoint}
                line["trace"] = f"{one.context.trace_id:032x}"
                file.write(json.dumps(line | dict(one.attributes)) + chr(10))
        return SpanExportResult.SUCCESS

exporter = types.ModuleType("trace_exporter")
exporter.OTLPSpanExporter = Exporter
sys.modules["opentelemetry.exporter.otlp.proto.http.trace_exporter"] = exporter
"""
TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


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


def test_a_traced_request_joins_its_callers_trace(released, tmp_path, monkeypatch):
    monkeypatch.setenv("SPANS", str(tmp_path / "spans"))
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    given = {"program": EXPORTER + SERVE, "otlp_endpoint": "http://collector:4318"}
    with running(released, tmp_path / "log", **given) as server:
        headers = {"content-type": "application/json", "traceparent": f"00-{TRACE}-{CALLER}-01"}
        url = f"{server.url}/v1/recommend"
        request = urllib.request.Request(url, data=b"{}", headers=headers)
        with urllib.request.urlopen(request, timeout=10) as reply:
            request_id = json.load(reply)["request_id"]
        server.process.send_signal(signal.SIGINT)
        server.process.wait(20)
    # The probes before it are not traced.
    lines = [json.loads(line) for line in (tmp_path / "spans").read_text().splitlines()]
    spans = {line["name"]: line for line in lines if line["trace"] == TRACE}
    assert {"/v1/recommend", "queue", "worker", "retrieve", "rank"} <= spans.keys()
    root = spans["/v1/recommend"]
    assert (root["parent"], root["recsys.request_id"]) == (CALLER, request_id)
    assert root["http.response.status_code"] == 200
    assert root["to"] == "http://collector:4318/v1/traces"
    assert {line["trace"] for line in lines} == {TRACE}
