"""Traces of requests, sent by OpenTelemetry if ``RECSYS_OTLP_ENDPOINT`` names a collector.

Import this only then: the libraries take time to import. Which requests are traced is set
as for any OpenTelemetry program (``OTEL_TRACES_SAMPLER``, ``OTEL_TRACES_SAMPLER_ARG``), and so are
the name and attributes of the service (``OTEL_SERVICE_NAME``, ``OTEL_RESOURCE_ATTRIBUTES``).
"""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry.context import Context
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

PATH = "/v1/traces"
WAITS = ("queue", "worker")
"""Parts of ``timings_ms`` that are not stages of the list; ``total`` is their sum."""
FLUSH_MS = 2_000


class Traces:
    """Records finished requests as spans; a thread of the processor sends them."""

    def __init__(self, processor: SpanProcessor) -> None:
        resource = Resource({"service.name": "recsys"}).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("recsys.serving")
        self._propagator = TraceContextTextMapPropagator()

    def record(
        self,
        request_id: str,
        started: float,
        timings_ms: Mapping[str, float],
        status: int,
        *,
        seconds: float,
        route: str,
        traceparent: str | None = None,
    ) -> None:
        """Record a request: its span, below it queue and worker, below that each stage in order.

        Args:
            started: Unix seconds at its first byte.
            timings_ms: ``queue`` and ``worker`` where it had them, and the stages of the reply.
            seconds: From its first byte to the last byte of its response.
            route: As ``metrics.counted_route`` names it.
            traceparent: The request's header of this name; a malformed one begins a new trace.
        """
        parent = self._propagator.extract({"traceparent": traceparent} if traceparent else {})
        begin = int(started * 1e9)
        request = self._tracer.start_span(
            route, parent, SpanKind.SERVER, {"http.route": route}, start_time=begin
        )
        if request.is_recording():
            request.set_attribute("http.response.status_code", status)
            request.set_attribute("recsys.request_id", request_id)
            if status >= 500:
                request.set_status(StatusCode.ERROR)
            self._record_parts(timings_ms, set_span_in_context(request), begin)
        request.end(begin + int(seconds * 1e9))

    def _record_parts(self, timings_ms: Mapping[str, float], inside: Context, begin: int) -> None:
        in_worker = begin + int(timings_ms.get("queue", 0.0) * 1e6)
        if "queue" in timings_ms:
            self._tracer.start_span("queue", inside, start_time=begin).end(in_worker)
        if "worker" not in timings_ms:
            return
        worker = self._tracer.start_span("worker", inside, start_time=in_worker)
        below, at = set_span_in_context(worker), in_worker
        for stage, ms in timings_ms.items():
            if stage not in (*WAITS, "total"):
                end = at + int(ms * 1e6)
                self._tracer.start_span(stage, below, start_time=at).end(end)
                at = end
        worker.end(in_worker + int(timings_ms["worker"] * 1e6))

    def close(self) -> None:
        """Send the remaining spans, for at most two seconds."""
        self._provider.force_flush(FLUSH_MS)
        self._provider.shutdown()


def open_traces(endpoint: str) -> Traces:
    """Send traces to a collector's OTLP endpoint over HTTP, such as ``http://collector:4318``."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise ValueError(
            f"RECSYS_OTLP_ENDPOINT is {endpoint!r} and traces cannot be sent: {error}; pip "
            "install opentelemetry-exporter-otlp-proto-http, or unset it"
        ) from error
    url = endpoint.rstrip("/")
    exporter = OTLPSpanExporter(endpoint=url if url.endswith(PATH) else url + PATH)
    return Traces(BatchSpanProcessor(exporter))
