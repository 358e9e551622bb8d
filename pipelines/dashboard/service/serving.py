"""Page ``serving``: the request log by day, and the pages that commands wrote on serving."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import polars as pl

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.data.sides import run_control, suggest_runs
from pipelines.dashboard.query import Query
from pipelines.dashboard.service.request_log import Logged, add_up, named, quantiles, request_log
from pipelines.dashboard.workspaces.run import Run
from pipelines.pages.charts import counts, figure, line_chart, numbers, shares, texts
from pipelines.pages.document import (
    Block,
    Chart,
    Column,
    Page,
    Section,
    Table,
    Words,
    with_origins,
)
from pipelines.publishing.released import shop_workspace

TITLE = "Serving"
STORE = "online"
LEAD = (
    "How lists were served, by the request log. What a server does now: its /metrics, with the "
    "files for Prometheus and Grafana in deploy/."
)
EXPORT_PATIENCE = 60.0
REFRESH_SECONDS = 3.0
"""While a log is being read."""
MAX_FAILED = 0.01
"""Share of late or failed lists above which the words are red."""
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
WATCH = (
    "recsys monitor WORKSPACE watches for drift, recsys parity WORKSPACE computes served lists "
    "again, recsys experiments compares the arms of an experiment."
)


def build(context: Context, query: Query) -> Page:
    """Build the page."""
    run = _choose_run(context, query)
    if run is None:
        words = "There is no workspace yet. recsys run makes one, recsys serve serves its bundle."
        return Page(title=TITLE, lead=LEAD, blocks=[Words(lines=[words], tone="note")])
    workspace = shop_workspace(run.path)
    logged, notices = _read_log(context, workspace / STORE)
    if logged.num_lists:
        blocks = build_blocks(logged)
    else:
        none = f"{workspace / STORE} has no list yet. Serve some: recsys serve {workspace}"
        line = "The log is being read." if logged.is_reading else none
        blocks = [Words(lines=[line], tone="note")]
    served = Section(key="log", title="Served lists", blocks=blocks)
    return Page(
        title=TITLE,
        lead=LEAD,
        blocks=[with_origins(served, [run.origin]), Words(lines=[WATCH])],
        controls=run_control(context, run),
        notices=notices,
        refresh_seconds=REFRESH_SECONDS if logged.is_reading and not context.exported else None,
    )


def _choose_run(context: Context, query: Query) -> Run | None:
    """Choose a workspace: the one named, else the newest that has served lists, else the newest."""
    if key := query.text("run"):
        run = context.stores.run(key)
        maker = context.stores.maker(run) or run
        return maker if maker.kind == "workspace" else None
    workspaces = context.stores.workspaces()
    served = (run for run in workspaces if (shop_workspace(run.path) / STORE).is_dir())
    return next(served, workspaces[0] if workspaces else None)


def _read_log(context: Context, store: Path) -> tuple[Logged, list[str]]:
    """Read the log, with the notices on it."""
    if not store.is_dir():
        return Logged(), []
    log = request_log(context, store)
    logged = log.now(EXPORT_PATIENCE) if context.exported else log.now()
    notices = [logged.fault] if logged.fault else []
    if logged.is_reading:
        since = f", back to {min(logged.days)}" if logged.days else ""
        notices.append(f"{logged.num_lists:,} lists are read so far{since}; more are being read")
    if logged.num_unreadable:
        notices.append(f"{logged.num_unreadable:,} records of lists cannot be read")
    return logged, notices


class DayFacts(NamedTuple):
    """Numbers of the lists of a day."""

    day: str
    lists: int
    p50: float | None
    p95: float | None
    p99: float | None
    failed: float
    """Share of lists with late or failed parts."""
    fallback: float
    version: str
    """Bundle of most lists."""


def measure_day(day: str, rows: pl.DataFrame) -> DayFacts:
    """Compute the numbers of a day from its counts."""
    bundles, times = named(rows, "bundle"), quantiles(rows, QUANTILES)
    lists = bundles.total()
    late, fallback = (named(rows, kind).total() / lists for kind in ("late", "fallback"))
    p50, p95, p99 = map(times.get, QUANTILES)
    return DayFacts(day, lists, p50, p95, p99, late, fallback, bundles.most_common(1)[0][0])


def build_blocks(logged: Logged) -> list[Block]:
    """Describe the newest day, and tabulate all days, their codes and sources."""
    days = [measure_day(day, rows) for day, rows in logged.days.items() if rows.height]
    newest, whole = days[0], add_up(list(logged.days.values()))
    codes, sources = named(whole, "code"), named(whole, "source")
    time = "time not kept" if newest.p95 is None else f"p95 {newest.p95:.1f} ms"
    said = (
        f"{logged.num_lists:,} lists from {days[-1].day} to {newest.day} UTC. On {newest.day}: "
        f"{time}, {newest.failed:.2%} with late or failed parts, {newest.fallback:.2%} made of "
        f"popular items alone, most of version {newest.version}."
    )
    words = Words(lines=[said], tone="bad" if newest.failed > MAX_FAILED else "plain")
    degraded = _share_table(
        "codes",
        "Degraded lists, and why",
        "A list may have several codes; docs/serving.md lists them. Requests that were refused "
        "before any list was made (503, overload) are in the server's /metrics alone.",
        [*texts("code"), *counts("lists"), *shares("share")],
        codes,
        logged.num_lists,
    )
    shown = _share_table(
        "sources",
        "Sources of shown items",
        "By the source that leads an item; a source that vanishes has failed, or its model was "
        "released without it.",
        [*texts("source"), *counts("items"), *shares("share")],
        sources,
        sources.total(),
    )
    return [words, *_draw_times(days), _tabulate(days), degraded, shown]


def _draw_times(days: Sequence[DayFacts]) -> list[Chart]:
    """Draw quantiles of the time of a list; none without a time."""
    rows = [
        (f"{one.day}T00:00:00Z", name, value)
        for one in reversed(days)
        for name in QUANTILES
        if (value := getattr(one, name)) is not None
    ]
    chart = figure(
        line_chart,
        "latency",
        "Milliseconds of a list",
        "Half of the lists of a day took at most p50, 95 of 100 at most p95, 99 at most p99, "
        "within 5%; without the wait for a worker and the network.",
        [Column(label="day", format="time"), *texts("series"), *numbers("milliseconds")],
        rows,
        "x series y",
        y_title="milliseconds",
        time=True,
        from_zero=True,
    )
    return [chart] if rows else []


def _tabulate(days: Sequence[DayFacts]) -> Table:
    return Table(
        key="days",
        title="By day",
        note="Times are of lists that were logged with them.",
        columns=[
            *texts("day (UTC)"),
            *counts("lists"),
            *numbers(*(f"{name} (ms)" for name in QUANTILES)),
            *shares("late or failed", "fallbacks"),
            *texts("version", note="of most lists"),
        ],
        rows=days,
    )


def _share_table(
    key: str, title: str, note: str, columns: Sequence[Column], found: Counter[str], total: int
) -> Table:
    """Tabulate counts by name with their shares of a total."""
    rows = [(name, count, count / max(1, total)) for name, count in found.most_common()]
    return Table(key=key, title=title, note=note, columns=columns, rows=rows)


ENTRY = PageEntry(
    name="serving", title=TITLE, build=build, suggest={"runs": suggest_runs}, keeps=("run",)
)
