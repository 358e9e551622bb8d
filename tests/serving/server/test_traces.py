"""Traces: spans of a request as they would be sent, and a clear refusal without the exporter."""

import asyncio
import sys

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from serving.server.traces import Traces, open_traces
from tests.serving.server.bench import FrontBench, list_of

STARTED = 1_700_000_000.0
TIMINGS = {"queue": 2.0, "worker": 5.0, "retrieve": 3.0, "rank": 1.0, "total": 4.0}


def recorded(status: int = 200, timings=TIMINGS):
    exporter = InMemorySpanExporter()
    traces = Traces(SimpleSpanProcessor(exporter))
    traces.record(
        "r1",
        STARTED,
        timings,
        status,
        seconds=0.008,
        route="/v1/recommend",
        traceparent=None,
    )
    traces.close()
    return {span.name: span for span in exporter.get_finished_spans()}


def test_a_request_has_a_span_for_each_part_at_its_time() -> None:
    spans = recorded()
    begin = int(STARTED * 1e9)
    at = {
        name: ((span.start_time - begin) / 1e6, (span.end_time - begin) / 1e6)
        for name, span in spans.items()
    }
    assert at == {
        "/v1/recommend": (0.0, 8.0),
        "queue": (0.0, 2.0),
        "worker": (2.0, 7.0),
        "retrieve": (2.0, 5.0),
        "rank": (5.0, 6.0),
    }
    parents = {name: span.parent and span.parent.span_id for name, span in spans.items()}
    request, worker = (spans[n].context.span_id for n in ("/v1/recommend", "worker"))
    assert parents == {
        "/v1/recommend": None,
        "queue": request,
        "worker": request,
        "retrieve": worker,
        "rank": worker,
    }
    assert dict(spans["/v1/recommend"].attributes) == {
        "http.route": "/v1/recommend",
        "http.response.status_code": 200,
        "recsys.request_id": "r1",
    }
    assert spans["rank"].resource.attributes["service.name"] == "recsys"


PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    ("given", "joins"), [(PARENT, True), ("nonsense", False), (PARENT[:-1] + "0", None)]
)
def test_a_request_joins_its_callers_trace_if_that_is_sampled(given, joins) -> None:
    exporter = InMemorySpanExporter()

    async def test():
        bench = FrontBench(traces=Traces(SimpleSpanProcessor(exporter)))
        headers = [(b"traceparent", given.encode())]
        asking = await bench.begun(document={}, headers=headers)
        bench.reply(0, list_of("any"))
        return await asking

    assert asyncio.run(test()).status == 200
    found = [span for span in exporter.get_finished_spans() if span.name == "/v1/recommend"]
    assert [f"{one.context.trace_id:032x}" in PARENT for one in found] == (
        [] if joins is None else [joins]
    )


def test_a_refused_request_is_one_span_and_a_failed_one_an_error() -> None:
    assert recorded(503, timings={}).keys() == {"/v1/recommend"}
    assert not recorded(503, timings={})["/v1/recommend"].status.is_ok
    assert recorded(422, timings={})["/v1/recommend"].status.is_ok


def test_an_endpoint_without_the_exporter_is_refused_with_what_to_install(monkeypatch) -> None:
    name = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match=r"http://c:4318.*pip install opentelemetry"):
        open_traces("http://c:4318")
