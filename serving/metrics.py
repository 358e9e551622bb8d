"""Metrics of a server for Prometheus: one registry, in the one process that sees every request.

A label's values are a fixed set, and any other value counts as ``other``: neither a client nor a
bundle can add time series, and no label holds the id of a user or item.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
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

from serving.routes import PATHS, template_of
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
"""Whether the record of a served list reached the online store."""

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


def route_of(path: str) -> str:
    """Return the template of a request's path, ``other`` if no route has it."""
    return template_of(path) or OTHER


_STATUSES = {int(status): str(int(status)) for status in HTTPStatus}


class _Children(dict[str, Child]):
    """A metric's children by the value of its one label, all made at once: they begin at 0."""

    def __init__(self, metric: Child, values: Iterable[str]) -> None:
        super().__init__({value: metric.labels(value) for value in (*values, OTHER)})

    def __missing__(self, _: str) -> Child:
        return self[OTHER]


class ServerMetrics:
    """Counts what the server does; called from one thread."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)

        def counter(name: str, what: str, label: str, values: Iterable[str]) -> _Children[Counter]:
            return _Children(Counter(name, what, [label], registry=registry), values)

        self._requests = Counter(
            "recsys_requests", "Requests answered.", ["route", "status"], registry=registry
        )
        self._by_route_and_status: dict[tuple[str, int], Counter] = {}
        request_seconds = Histogram(
            "recsys_request_seconds",
            "From the first byte of a request to the last byte of its response.",
            ["route"],
            buckets=REQUEST_BUCKETS,
            registry=registry,
        )
        self._request_seconds = _Children(request_seconds, PATHS)
        stage_seconds = Histogram(
            "recsys_stage_seconds",
            "Time of one list by stage; total is all of them.",
            ["stage"],
            buckets=STAGE_BUCKETS,
            registry=registry,
        )
        self._stage_seconds = _Children(stage_seconds, STAGES)
        self._replies = Counter("recsys_replies", "Lists made.", registry=registry)
        names = (*SOURCES, RULES)
        self._sources = counter(
            "recsys_sources", "Lists with items from a source.", "source", names
        )
        self._degraded = counter(
            "recsys_degraded", "Lists that say they are degraded.", "code", DEGRADED_CODES
        )
        self._fallbacks = counter(
            "recsys_fallbacks", "Lists made by a fallback alone.", "source", names
        )
        self._refused = counter(
            "recsys_refused", "Requests refused before any model work.", "reason", REFUSALS
        )
        self._kept = counter(
            "recsys_lists_logged", "Served lists by what became of their records.", "result", LOGGED
        )
        self._restarts = counter(
            "recsys_worker_restarts", "Workers that were replaced.", "reason", RESTARTS
        )
        self._add_process_metrics(registry)
        self._add_bundle_metrics(registry)

    def _add_process_metrics(self, registry: CollectorRegistry) -> None:
        self._queue_depth = Gauge("recsys_queue_depth", "Requests that wait.", registry=registry)
        self._queue_seconds = Histogram(
            "recsys_queue_seconds",
            "How long a request waited for a worker.",
            buckets=STAGE_BUCKETS,
            registry=registry,
        )
        self._connections = Gauge("recsys_connections", "Open connections.", registry=registry)
        self._workers = Gauge("recsys_workers_ready", "Workers that answer.", registry=registry)
        self._wanted = Gauge("recsys_workers_wanted", "Workers configured.", registry=registry)

    def _add_bundle_metrics(self, registry: CollectorRegistry) -> None:
        self._swap_seconds = Histogram(
            "recsys_swap_seconds",
            "From a new bundle being seen to it being served.",
            buckets=SWAP_BUCKETS,
            registry=registry,
        )
        self._swaps_refused = Counter(
            "recsys_swaps_refused", "Bundles that were refused.", registry=registry
        )
        self._refused_now = Gauge(
            "recsys_bundle_refused",
            "1 while the published bundle is refused and an older one is served.",
            registry=registry,
        )
        self._bundle = Gauge(
            "recsys_bundle_info", "The served bundle.", ["version", "digest"], registry=registry
        )
        self._age = Gauge(
            "recsys_bundle_age_seconds", "Time since the bundle was released.", registry=registry
        )

    def observe_request(self, route: str, status: int, seconds: float) -> None:
        """Count an answered request, refused ones included."""
        counted = self._by_route_and_status.get((route, status))
        if counted is None:
            counted = self._counter_of(route, status)
        counted.inc()
        self._request_seconds[route].observe(seconds)

    def _counter_of(self, route: str, status: int) -> Counter:
        known, code = route in PATHS, _STATUSES.get(status)
        counted = self._requests.labels(route if known else OTHER, code or OTHER)
        # Only what is in the fixed sets is kept: the rest has no bound.
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
            self._sources[source].inc()
        for code in degraded_codes:
            self._degraded[code].inc()
        if fallback is not None:
            self._fallbacks[fallback].inc()

    def queue(self, depth: int, waited_seconds: float | None = None) -> None:
        """Note how many requests wait, and how long the one that a worker took had waited."""
        self._queue_depth.set(depth)
        if waited_seconds is not None:
            self._queue_seconds.observe(waited_seconds)

    def refused(self, reason: str) -> None:
        """Count a request that was refused before any model work, for one of ``REFUSALS``."""
        self._refused[reason].inc()

    def lists_kept(self, num_kept: int, num_dropped: int) -> None:
        """Count served lists whose records reached the store, and those whose did not."""
        self._kept["kept"].inc(num_kept)
        self._kept["dropped"].inc(num_dropped)

    def connections(self, num_open: int) -> None:
        """Note how many connections are open."""
        self._connections.set(num_open)

    def worker_restarted(self, reason: str) -> None:
        """Count a worker that was replaced, for one of ``RESTARTS``."""
        self._restarts[reason].inc()

    def workers(self, ready: int, wanted: int | None = None) -> None:
        """Note how many workers answer, and how many there should be."""
        self._workers.set(ready)
        if wanted is not None:
            self._wanted.set(wanted)

    def swap(self, seconds: float) -> None:
        """Count a swap to another bundle."""
        self._swap_seconds.observe(seconds)

    def swap_refused(self) -> None:
        """Count a published bundle that is not served."""
        self._swaps_refused.inc()
        self._refused_now.set(1)

    def published_serves(self) -> None:
        """Note that what is published is served."""
        self._refused_now.set(0)

    def bundle(self, version: str, digest: str, age_seconds: float) -> None:
        """Name the served bundle; its age grows from here."""
        self._bundle.clear()
        self._bundle.labels(version, digest).set(1)
        self._refused_now.set(0)
        # Not the wall clock, which may be set back while the bundle is served.
        released = time.monotonic() - age_seconds
        self._age.set_function(lambda: time.monotonic() - released)

    def render(self) -> tuple[bytes, str]:
        """Return the page for Prometheus and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST
