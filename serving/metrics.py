"""Metrics of a server for Prometheus: one registry, in the one process that sees every request.

A label's values are a fixed set, and any other value counts as ``other``: neither a client nor a
bundle can add time series, and no label holds the id of a user or item.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import TypeVar, get_args

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics import MetricWrapperBase

from serving.routes import PATHS, find_template
from serving.schemas import DegradedCode
from serving.surfaces import RULES, SOURCES

OTHER = "other"
STAGES = ("hydrate", "filter", "retrieve", "rank", "select", "total")
DEGRADED_CODES: tuple[str, ...] = get_args(DegradedCode)
REFUSALS = (
    "body",
    "connections",
    "deadline",
    "draining",
    "headers",
    "key",
    "limit",
    "not_ready",
    "queue_full",
)
"""Why a request was refused before any model work."""
RESTARTS = ("exited", "killed", "stuck")
"""Why a worker was replaced: it ended, a signal ended it, or it did not answer."""

LOGGED = ("kept", "dropped")
"""True if the record of a served list reached the online store."""

REQUEST_BUCKETS = (
    *(0.0005, 0.001, 0.002, 0.003, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02),
    *(0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30),
)
STAGE_BUCKETS = (
    *(0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01),
    *(0.015, 0.02, 0.05, 0.1, 0.2, 0.5, 1),
)
SWAP_BUCKETS = (0.25, 0.5, 1, 2, 5, 10, 20, 60, 300)

Child = TypeVar("Child", bound=MetricWrapperBase)

# A second series for each counter and histogram, with the time it began.
disable_created_metrics()  # type: ignore[no-untyped-call]


def counted_route(path: str) -> str:
    """Return the template of a request's path, ``other`` if no route has it."""
    return find_template(path) or OTHER


_STATUSES = {int(status): str(int(status)) for status in HTTPStatus}


class _Children(dict[str, Child]):
    """A metric's children by the value of its one label, all made at once: they begin at 0."""

    def __init__(self, metric: Child, values: Iterable[str]) -> None:
        super().__init__({value: metric.labels(value) for value in (*values, OTHER)})

    def __missing__(self, _: str) -> Child:
        return self[OTHER]


NAMES = (*SOURCES, RULES)
LABELLED: Mapping[str, tuple[str, str, Sequence[str]]] = {
    "sources": ("Lists with items from a source.", "source", NAMES),
    "degraded": ("Lists that say they are degraded.", "code", DEGRADED_CODES),
    "fallbacks": ("Lists made by a fallback alone.", "source", NAMES),
    "refused": ("Requests refused before any model work.", "reason", REFUSALS),
    "lists_logged": ("Served lists by what became of their records.", "result", LOGGED),
    "worker_restarts": ("Workers that were replaced.", "reason", RESTARTS),
}
"""Counters by name: what they count, their label and its values."""
TIMES: Mapping[str, tuple[str, Sequence[float], str | None, Sequence[str]]] = {
    "request": (
        "From the first byte of a request to the last byte of its response.",
        REQUEST_BUCKETS,
        "route",
        PATHS,
    ),
    "stage": ("Time of one list by stage; total is all of them.", STAGE_BUCKETS, "stage", STAGES),
    "queue": ("How long a request waited for a worker.", STAGE_BUCKETS, None, ()),
    "swap": ("From a new bundle being seen to it being served.", SWAP_BUCKETS, None, ()),
}
"""Histograms of seconds by name: what they measure, buckets, their label and its values."""
GAUGES: Mapping[str, str] = {
    "queue_depth": "Requests that wait.",
    "connections": "Open connections.",
    "workers_ready": "Workers that answer.",
    "workers_wanted": "Workers configured.",
    "bundle_refused": "1 while the published bundle is refused and an older one is served.",
    "bundle_age_seconds": "Time since the bundle was released.",
}


class ServerMetrics:
    """Counts what the server does; called from one thread."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"recsys_{name}", text, labels, registry=registry)

        self._requests = counter("requests", "Requests answered.", "route", "status")
        self._by_route_and_status: dict[tuple[str, int], Counter] = {}
        self._replies = counter("replies", "Lists made.")
        self._swaps_refused = counter("swaps_refused", "Bundles that were refused.")
        self._counters = {
            name: _Children(counter(name, text, label), values)
            for name, (text, label, values) in LABELLED.items()
        }
        histograms = {
            name: Histogram(
                f"recsys_{name}_seconds",
                text,
                [label] if label else [],
                buckets=buckets,
                registry=registry,
            )
            for name, (text, buckets, label, _) in TIMES.items()
        }
        self._request_seconds = _Children(histograms["request"], PATHS)
        self._stage_seconds = _Children(histograms["stage"], STAGES)
        self._queue_seconds, self._swap_seconds = histograms["queue"], histograms["swap"]
        self._gauges = {
            name: Gauge(f"recsys_{name}", text, registry=registry) for name, text in GAUGES.items()
        }
        self._bundle = Gauge(
            "recsys_bundle_info", "The served bundle.", ["version", "digest"], registry=registry
        )

    def observe_request(self, route: str, status: int, seconds: float) -> None:
        """Count an answered request, refused ones included."""
        counted = self._by_route_and_status.get((route, status))
        if counted is None:
            counted = self._request_counter(route, status)
        counted.inc()
        self._request_seconds[route].observe(seconds)

    def _request_counter(self, route: str, status: int) -> Counter:
        known, code = route in PATHS, _STATUSES.get(status)
        counted = self._requests.labels(route if known else OTHER, code or OTHER)
        # Only members of the fixed sets are kept: the rest has no bound.
        if known and code:
            self._by_route_and_status[route, status] = counted
        return counted

    def observe_reply(
        self,
        stage_ms: Mapping[str, float],
        sources: Iterable[str],
        degraded_codes: Iterable[str],
        fallback: str | None,
    ) -> None:
        """Count one list.

        Args:
            stage_ms: Milliseconds by stage, as in the reply's ``timings_ms``.
            sources: Each source that leads an item of the list, once.
            degraded_codes: Each code once.
        """
        self._replies.inc()
        for stage, ms in stage_ms.items():
            self._stage_seconds[stage].observe(ms / 1_000)
        for source in sources:
            self._counters["sources"][source].inc()
        for code in degraded_codes:
            self._counters["degraded"][code].inc()
        if fallback is not None:
            self._counters["fallbacks"][fallback].inc()

    def queue(self, depth: int, waited_seconds: float | None = None) -> None:
        """Note how many requests wait, and how long the one that a worker took had waited."""
        self._gauges["queue_depth"].set(depth)
        if waited_seconds is not None:
            self._queue_seconds.observe(waited_seconds)

    def refused(self, reason: str) -> None:
        """Count a request that was refused before any model work, for one of ``REFUSALS``."""
        self._counters["refused"][reason].inc()

    def lists_kept(self, num_kept: int, num_dropped: int) -> None:
        """Count served lists whose records reached the store, and those whose did not."""
        self._counters["lists_logged"]["kept"].inc(num_kept)
        self._counters["lists_logged"]["dropped"].inc(num_dropped)

    def note(self, **gauges: float) -> None:
        """Set gauges of `GAUGES`."""
        for name, value in gauges.items():
            self._gauges[name].set(value)

    def worker_restarted(self, reason: str) -> None:
        """Count a worker that was replaced, for one of ``RESTARTS``."""
        self._counters["worker_restarts"][reason].inc()

    def swap(self, seconds: float) -> None:
        """Count a swap to another bundle."""
        self._swap_seconds.observe(seconds)

    def swap_refused(self) -> None:
        """Count a published bundle that is not served."""
        self._swaps_refused.inc()
        self._gauges["bundle_refused"].set(1)

    def bundle(self, version: str, digest: str, age_seconds: float) -> None:
        """Set the served bundle; its age grows from here."""
        self._bundle.clear()
        self._bundle.labels(version, digest).set(1)
        self._gauges["bundle_refused"].set(0)
        # Not the wall clock, which may be set back while the bundle is served.
        released = time.monotonic() - age_seconds
        self._gauges["bundle_age_seconds"].set_function(lambda: time.monotonic() - released)

    def render(self) -> tuple[bytes, str]:
        """Return the page for Prometheus and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST
