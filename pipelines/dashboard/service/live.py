"""A live server: its metrics, read by this process, with a short memory so that rates are drawn."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from prometheus_client.parser import text_string_to_metric_families

from pipelines.dashboard.context import Context
from pipelines.dashboard.service.traffic import clock, iso
from pipelines.pages.charts import Row, figure, line_chart, numbers, texts
from pipelines.pages.document import Block, Chart, Column, Section, Table, Tile, Tiles, Words
from serving.metrics import STAGES

TIMEOUT_SECONDS = 1.0
LEAST_SECONDS = 1.0
"""Between two readings, however often the page is looked at."""
KEPT = 720
MAX_BYTES = 4 << 20
Labels = tuple[tuple[str, str], ...]
NO_SERVER = (
    "No server was named. Start the dashboard with --server http://127.0.0.1:8000 to see the "
    "metrics of a running recsys serve: requests, refusals by overload, queue, memory."
)


COUNTERS = {
    "refused": ("recsys_refused_total", "reason"),
    "degraded": ("recsys_degraded_total", "code"),
    "fallback": ("recsys_fallbacks_total", "source"),
    "worker replaced": ("recsys_worker_restarts_total", "reason"),
    "record of a list": ("recsys_lists_logged_total", "result"),
    "status": ("recsys_requests_total", "status"),
}
"""Metric and label by the name of its rows."""
RATES = {"lists": "recsys_replies_total", "refused": "recsys_refused_total"}


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


@dataclass(frozen=True)
class Sample:
    """The metrics at a moment: value by name and labels."""

    time_ms: int
    values: Mapping[str, Mapping[Labels, float]]

    def total(self, name: str, **labels: str) -> float:
        """Add up the series of a metric that have these labels."""
        return sum(self.by(name, "", **labels).values())

    def by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """Add up the series of a metric that have these labels by the value of another."""
        found: dict[str, float] = {}
        for have, value in self.values.get(name, {}).items():
            if labels.items() <= set(have):
                key = dict(have).get(label, "")
                found[key] = found.get(key, 0.0) + value
        return found

    def buckets(self, name: str, **labels: str) -> dict[float, float]:
        """Return how many observations of a histogram are at most each bound."""
        counts = self.by(f"{name}_bucket", "le", **labels)
        return dict(sorted((float(bound), count) for bound, count in counts.items()))


@dataclass
class Ring:
    """The latest samples of one server."""

    address: str
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=KEPT))
    fault: str = ""
    """Why the last reading failed, in words."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _looked: float = -math.inf

    def look(self) -> None:
        """Read the metrics, unless that was just done."""
        with self._lock:
            if time.monotonic() - self._looked < LEAST_SECONDS:
                return
            self._looked = time.monotonic()
            try:
                text = fetched(self.address)
                self.samples.append(parse_sample(text, now_ms()))
                self.fault = ""
            except (OSError, ValueError) as error:
                self.fault = _words(self.address, error)


def now_ms() -> int:
    """Read the clock in unix milliseconds."""
    return int(1_000 * time.time())


def fetched(address: str) -> str:
    """Read ``/metrics`` of a server; no redirect is followed."""
    if not address.startswith(("http://", "https://")):
        raise ValueError(f"{address!r} is no address; write http://HOST:PORT")
    request = Request(f"{address.rstrip('/')}/metrics", headers={"accept": "text/plain"})
    with build_opener(_NoRedirects).open(request, timeout=TIMEOUT_SECONDS) as reply:
        data: bytes = reply.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"it sent more than {MAX_BYTES} bytes")
    return data.decode()


def parse_sample(text: str, time_ms: int) -> Sample:
    """Parse metrics."""
    values: dict[str, dict[Labels, float]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for one in family.samples:
                values.setdefault(one.name, {})[tuple(sorted(one.labels.items()))] = one.value
    except Exception as error:
        raise ValueError(f"its metrics cannot be read: {error}") from error
    if "recsys_replies_total" not in values:
        raise ValueError("its metrics are not those of recsys serve")
    return Sample(time_ms, values)


def histogram_quantile(buckets: Mapping[float, float], q: float) -> float | None:
    """Estimate a quantile of a histogram, linear within its bucket; None without observations."""
    total = max(buckets.values(), default=0.0)
    if total <= 0:
        return None
    low, below = 0.0, 0.0
    for bound, count in buckets.items():
        if count >= q * total:
            if math.isinf(bound):
                return low
            share = (q * total - below) / (count - below) if count > below else 1.0
            return low + share * (bound - low)
        low, below = bound, count
    return low


def live_section(context: Context) -> tuple[Section, list[str]]:
    """Draw a live server; its faults come second."""
    title = "Live server"
    if context.server is None or context.exported:
        return Section(key="live", title=title, blocks=[Words(lines=[NO_SERVER])]), []
    address = context.server
    ring = context.cache.get(("live server", address), (), lambda: Ring(address))
    ring.look()
    notices = [ring.fault] if ring.fault else []
    samples = list(ring.samples)
    if not samples:
        words = f"Nothing was read from {address} yet. {ring.fault}"
        return Section(key="live", title=title, blocks=[Words(lines=[words], tone="bad")]), notices
    blocks: list[Block] = [_tiles(samples), _counters(samples[-1])]
    if len(samples) > 1:
        blocks += _charts(samples)
    else:
        blocks.append(Words(lines=["Refresh the page: rates are drawn from two readings on."]))
    note = f"Metrics of {address}, as of {clock(samples[-1].time_ms)} UTC."
    return Section(key="live", title=title, blocks=blocks, note=note), notices


def _words(address: str, error: Exception) -> str:
    why = str(error)
    if isinstance(error, HTTPError):
        needs = {401, 403}
        key = "; its metrics need a key, which the dashboard has not" if error.code in needs else ""
        why = f"it answered {error.code}{key}"
    elif isinstance(error, URLError):
        why = str(error.reason)
    return f"the server {address} cannot be read: {why}"


def _tiles(samples: Sequence[Sample]) -> Tiles:
    now = samples[-1]
    ready, wanted = now.total("recsys_workers_ready"), now.total("recsys_workers_wanted")
    refused = now.total("recsys_refused_total")
    p95 = histogram_quantile(now.buckets("recsys_request_seconds", route="/v1/recommend"), 0.95)
    rows = (
        (
            "Bundle",
            next(iter(now.by("recsys_bundle_info", "version")), "none"),
            f"released {now.total('recsys_bundle_age_seconds') / 3_600:.1f} h ago",
            now.total("recsys_bundle_refused"),
        ),
        ("Workers", f"{ready:g} of {wanted:g}", "that answer", ready < wanted),
        ("Lists made", f"{now.total('recsys_replies_total'):,.0f}", "", False),
        (
            "Request, p95",
            "-" if p95 is None else f"{1_000 * p95:.1f} ms",
            "of /v1/recommend since the start, with the wait for a worker",
            False,
        ),
        ("Refused", f"{refused:,.0f}", "requests before any model work", refused),
        ("Queue", f"{now.total('recsys_queue_depth'):g}", "requests wait", False),
        (
            "Memory of the front",
            f"{now.total('process_resident_memory_bytes') / (1 << 20):,.0f} MiB",
            "",
            False,
        ),
    )
    return Tiles(
        tiles=[
            Tile(label=label, value=value, note=note, tone="bad" if is_bad else "plain")
            for label, value, note, is_bad in rows
        ]
    )


def _counters(now: Sample) -> Table:
    return Table(
        key="counters",
        title="Counts since the server began",
        note="queue_full and deadline are overload.",
        columns=[*texts("what", "which"), *numbers("count")],
        rows=[
            (kind, name, int(count))
            for kind, (metric, label) in COUNTERS.items()
            for name, count in now.by(metric, label).items()
            if count
        ],
    )


def _charts(samples: Sequence[Sample]) -> list[Chart]:
    """Draw what grew between each two readings."""
    rates, times = list[Row](), list[Row]()
    for before, now in pairwise(samples):
        at, seconds = iso(now.time_ms), (now.time_ms - before.time_ms) / 1_000
        for name, metric in RATES.items():
            grown = now.total(metric) - before.total(metric)
            # A server that began again counts from 0.
            if grown >= 0 and seconds > 0:
                rates.append((at, name, round(grown / seconds, 4)))
        for stage in STAGES:
            old = before.buckets("recsys_stage_seconds", stage=stage)
            new = now.buckets("recsys_stage_seconds", stage=stage)
            more = {bound: count - old.get(bound, 0.0) for bound, count in new.items()}
            p95 = histogram_quantile(more, 0.95) if min(more.values(), default=0.0) >= 0 else None
            if p95 is not None:
                times.append((at, stage, round(1_000 * p95, 4)))
    return [
        figure(
            line_chart,
            key,
            title,
            f"Between each two readings of this page; it remembers the last {KEPT}.",
            [Column(label="time", format="time"), *texts("series"), *numbers(unit)],
            rows,
            "x series y",
            time=True,
            y_title=unit,
            from_zero=True,
        )
        for key, title, unit, rows in (
            ("rates", "Lists and refusals per second", "per second", rates),
            ("live-stages", "p95 by stage, estimated", "milliseconds", times),
        )
        if rows
    ]
