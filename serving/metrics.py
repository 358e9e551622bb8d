"""Metrics of a server for Prometheus: one registry, in the one process that sees every request.

A label's values are a fixed set, and any other value counts as ``other``: neither a client nor a
bundle can add time series, and no label holds the id of a user or item.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from itertools import accumulate
from typing import get_args

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

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

# A second series for each counter and histogram, with the time it began.
disable_created_metrics()  # type: ignore[no-untyped-call]


def counted_route(path: str) -> str:
    """Return the template of a request's path, ``other`` if no route has it."""
    return find_template(path) or OTHER


_STATUSES = {int(status): str(int(status)) for status in HTTPStatus}


class _Times(Collector):
    """A histogram by one label, or none: an observation is a search and an addition."""

    def __init__(
        self,
        name: str,
        text: str,
        buckets: Sequence[float],
        label: str | None,
        values: Sequence[str],
    ) -> None:
        self._name, self._text = f"recsys_{name}_seconds", text
        self._bounds, self._label = (*buckets, math.inf), label
        known = (*values, OTHER) if label else (OTHER,)
        self._counts = {value: [0] * len(self._bounds) for value in known}
        self._sums = dict.fromkeys(known, 0.0)

    def observe(self, seconds: float, value: str = OTHER) -> None:
        """Count a time, of a label's value that is unknown as of ``other``."""
        value = value if value in self._counts else OTHER
        self._counts[value][bisect_left(self._bounds, seconds)] += 1
        self._sums[value] += seconds

    def collect(self) -> Iterator[Metric]:
        labels = [self._label] if self._label else []
        family = HistogramMetricFamily(self._name, self._text, labels=labels)
        for value, counts in self._counts.items():
            bounds = map(floatToGoString, self._bounds)
            buckets = list(zip(bounds, accumulate(map(float, counts)), strict=True))
            family.add_metric([value] if labels else [], buckets, self._sums[value])
        yield family


class _Counts(Collector):
    """A counter by one label, all of whose values begin at 0."""

    def __init__(self, name: str, text: str, label: str, values: Sequence[str]) -> None:
        self._name, self._text, self._label = f"recsys_{name}", text, label
        self._counts = dict.fromkeys((*values, OTHER), 0)

    def add(self, value: str, number: int = 1) -> None:
        """Count, a value that is unknown as ``other``."""
        self._counts[value if value in self._counts else OTHER] += number

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, self._text, labels=[self._label])
        for value, count in self._counts.items():
            family.add_metric([value], count)
        yield family


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
        "From the first byte of a request to the last byte of its response; lists that a full "
        "queue refuses at once are not timed.",
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
        self._counters = {name: _Counts(name, *described) for name, described in LABELLED.items()}
        self._times = {name: _Times(name, *described) for name, described in TIMES.items()}
        for kept in (*self._counters.values(), *self._times.values()):
            registry.register(kept)
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
        self._times["request"].observe(seconds, route)

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
        observe = self._times["stage"].observe
        for stage, ms in stage_ms.items():
            observe(ms / 1_000, stage)
        for source in sources:
            self._counters["sources"].add(source)
        for code in degraded_codes:
            self._counters["degraded"].add(code)
        if fallback is not None:
            self._counters["fallbacks"].add(fallback)

    def queued(self, seconds: float) -> None:
        """Note how long a request that a worker took had waited."""
        self._times["queue"].observe(seconds)

    def refused_at_once(self, route: str, number: int) -> None:
        """Count lists refused by a full queue before they took any time."""
        self._request_counter(route, 503).inc(number)
        self._counters["refused"].add("queue_full", number)

    def refused(self, reason: str) -> None:
        """Count a request that was refused before any model work, for one of ``REFUSALS``."""
        self._counters["refused"].add(reason)

    def lists_kept(self, num_kept: int, num_dropped: int) -> None:
        """Count served lists whose records reached the store, and those whose did not."""
        self._counters["lists_logged"].add("kept", num_kept)
        self._counters["lists_logged"].add("dropped", num_dropped)

    def note(self, **gauges: float) -> None:
        """Set gauges of `GAUGES`."""
        for name, value in gauges.items():
            self._gauges[name].set(value)

    def worker_restarted(self, reason: str) -> None:
        """Count a worker that was replaced, for one of ``RESTARTS``."""
        self._counters["worker_restarts"].add(reason)

    def swap(self, seconds: float) -> None:
        """Count a swap to another bundle."""
        self._times["swap"].observe(seconds)

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
