"""Served lists: how many, how fast, from which sources, and which were degraded and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

import polars as pl

from pipelines.dashboard.query import Query
from pipelines.dashboard.service.request_log import CODES, MINUTE_MS, Logged, quantiles
from pipelines.pages.charts import (
    Mark,
    Row,
    colors_of,
    counts,
    figure,
    interval_chart,
    line_chart,
    numbers,
    shares,
    texts,
    time_bars,
)
from pipelines.pages.document import (
    Block,
    Chart,
    Column,
    Control,
    Section,
    Table,
    Tile,
    Tiles,
    Words,
    select,
)
from serving.metrics import STAGES

RANGES = {
    "1h": ("last hour", 60),
    "6h": ("last 6 hours", 360),
    "24h": ("last 24 hours", 1_440),
    "7d": ("last 7 days", 10_080),
    "all": ("all that is kept", 0),
}
"""Label and minutes."""
STEPS = {
    "minute": 1,
    "5 minutes": 5,
    "10 minutes": 10,
    "30 minutes": 30,
    "hour": 60,
    "6 hours": 360,
    "day": 1_440,
}
"""Minutes of a step of the charts."""
MAX_STEPS, FEW_STEPS = 400, 60
ALL = "all surfaces"
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
STAGE_MEANINGS = {
    "hydrate": "read the user's history and make features",
    "filter": "find the items that may be shown",
    "retrieve": "query the sources",
    "rank": "blend and rank the candidates",
    "select": "rules, diversity, exploration",
    "total": "all of them",
}
NOT_KEPT = (
    "The log does not say how long these lists took: they were served by a version that kept no "
    "times. The part Live server has them from the server's own metrics."
)
CODE_MEANINGS = {
    "unknown_user": "the bundle does not know the user, who is served as a visitor",
    "empty_history": "nothing is known of the user and the visit: popular items",
    "unknown_item": "the bundle does not know the item of the request",
    "unknown_items": "some items of the session are not known",
    "unknown_category": "the filter's category has no items",
    "unknown_categories": "some of the filter's categories have no items",
    "stale_data": "what is served was made for an earlier time",
    "nothing_eligible": "no item is left by filters and rules",
    "seen_items_shown": "too few items are left without those that were seen",
    "short_list": "fewer items than were wanted",
    "late_source": "OVERLOAD OR A SLOW MODEL: a source did not answer in its time",
    "failed_source": "A FAULT: a source failed",
    "late_stage": "OVERLOAD OR A SLOW MODEL: the ranker did not answer in its time",
    "failed_stage": "A FAULT: the ranker failed",
    "failed_store": "A FAULT: the online store did not answer",
    "corrected_query": "the search text was corrected",
    "no_word_found": "no item has a word of the search text",
    "other": "a code that this version does not know",
    "no user": "the request named no user",
    "fallback": "made of popular items alone",
}
MAX_SERIES = 8
REST = "others"


def _at(time_ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)


def iso(time_ms: int) -> str:
    """Format a moment for charts."""
    return f"{_at(time_ms):%Y-%m-%dT%H:%M:%S}.{time_ms % 1_000:03d}Z"


def clock(time_ms: int) -> str:
    """Format a moment for people."""
    return f"{_at(time_ms):%Y-%m-%d %H:%M:%S}"


@dataclass(frozen=True, kw_only=True)
class View:
    """The counts of a range of time and a surface, with ``step_ms``, the begin of their step."""

    lists: pl.DataFrame
    sources: pl.DataFrame
    times: pl.DataFrame
    range: str
    step: str
    stage: str
    surface: str
    surfaces: Sequence[str]
    notices: Sequence[str] = ()

    @cached_property
    def total(self) -> int:
        """Lists of the range."""
        return int(self.lists["lists"].sum())

    def share(self, name: str) -> float:
        """Share of lists that a count is of."""
        return float(self.lists[name].sum()) / max(1, self.total)

    def until(self, step_ms: int) -> int:
        """End of a step."""
        return step_ms + STEPS[self.step] * MINUTE_MS

    def stretches(self, steps: Sequence[int]) -> list[int]:
        """Number the stretches of time without a gap, for each of some steps, ascending."""
        found: list[int] = []
        for before, step in zip([steps[0], *steps] if steps else (), steps, strict=False):
            found.append((found[-1] if found else 0) + (self.until(before) < step))
        return found

    @cached_property
    def swaps(self) -> Sequence[Mark]:
        """Find when another bundle took over: when most lists of a step began to be its own."""
        counted = (
            self.lists.group_by("step_ms", "bundle")
            .agg(pl.col("lists").sum(), pl.col("first_ms").min())
            .with_columns(pl.col("bundle").cast(pl.String))
            .sort("step_ms", "lists", "bundle", descending=[False, True, False])
        )
        most = counted.group_by("step_ms", maintain_order=True).first()
        marks, before = [], None
        for step_ms, bundle in zip(most["step_ms"], most["bundle"], strict=True):
            if before is not None and bundle != before[1]:
                steps = pl.col("step_ms").is_in([before[0], step_ms])
                own = counted.filter((pl.col("bundle") == bundle) & steps)
                first = min(own["first_ms"].to_list())
                words = f"{bundle} took over from {before[1]} at {clock(first)}"
                marks.append({"at": iso(first), "note": words, "label": bundle})
            before = (step_ms, bundle)
        return marks


def choose_view(logged: Logged, query: Query) -> View:
    """Choose by the parameters ``range``, ``step``, ``stage`` and ``surface``."""
    counted = logged.counted
    surfaces = sorted(counted.lists["surface"].cast(pl.String).unique().to_list())
    surface = query.choice("surface", [ALL, *surfaces], ALL)
    chosen = query.choice("range", RANGES, "24h")
    oldest, newest = logged.span or (0, 0)
    minutes = RANGES[chosen][1]
    begin_ms = max(oldest, newest + 1 - minutes * MINUTE_MS) if minutes else oldest
    begin_ms = begin_ms // MINUTE_MS * MINUTE_MS
    step, notices = _step(query, newest - begin_ms)
    length = STEPS[step] * MINUTE_MS
    kept = pl.col("minute_ms") >= begin_ms
    if surface != ALL:
        kept &= pl.col("surface") == surface
    of_step = (pl.col("minute_ms") // length * length).alias("step_ms")
    lists, sources, times = (
        frame.filter(kept).with_columns(of_step)
        for frame in (counted.lists, counted.sources, counted.times)
    )
    return View(
        lists=lists,
        sources=sources,
        times=times,
        range=chosen,
        step=step,
        stage=query.choice("stage", STAGES, "total"),
        surface=surface,
        surfaces=surfaces,
        notices=notices,
    )


def _step(query: Query, span_ms: int) -> tuple[str, list[str]]:
    chosen = query.choice("step", ["auto", *STEPS], "auto")
    fitting = (name for name, size in STEPS.items() if span_ms <= FEW_STEPS * size * MINUTE_MS)
    finest = next(fitting, "day")
    if chosen == "auto":
        return finest, []
    if span_ms > MAX_STEPS * STEPS[chosen] * MINUTE_MS:
        return finest, [f"by {chosen} there would be too many points; they are shown by {finest}"]
    return chosen, []


def build_controls(view: View) -> Sequence[Control]:
    """Offer ranges, steps, stages and surfaces."""
    return (
        select("range", "Time", view.range, {name: label for name, (label, _) in RANGES.items()}),
        select("step", "By", view.step, {"auto": "automatic", **{name: name for name in STEPS}}),
        select("stage", "Stage", view.stage, {name: name for name in STAGES}),
        select("surface", "Surface", view.surface, {one: one for one in (ALL, *view.surfaces)}),
    )


def _tiles(view: View) -> Tiles:
    """Summarise the range."""
    lists, total = view.lists, view.total
    took = quantiles(view.times.filter(pl.col("stage") == "total"), ["stage"], QUANTILES)
    ms = took.row(0, named=True) if took.height else None
    failed = view.share("late or failed part")
    newest = lists["bundle"][lists["last_ms"].arg_max() or 0] if total else "none"
    span = "no list in this range"
    if total:
        first, last = min(lists["first_ms"].to_list()), max(lists["last_ms"].to_list())
        span = f"{clock(first)} to {clock(last)} UTC"
    kept = "these lists were logged without times"
    if ms is not None:
        kept = f"p50 {ms['p50']:.1f} ms, p99 {ms['p99']:.1f} ms"
    visitors = f"of all lists; {view.share('no user'):.2%} more named no user"
    p95 = "not kept" if ms is None else f"{ms['p95']:.1f} ms"
    unknown = f"{view.share('unknown_user'):.2%}"
    rows = (
        ("Lists served", f"{total:,}", span),
        ("Time of a list, p95", p95, kept),
        ("Late or failed parts", f"{failed:.2%}", "lists that say so in degraded"),
        ("Fallback", f"{view.share('fallback'):.2%}", "lists made of popular items alone"),
        ("Users that the bundle does not know", unknown, visitors),
        ("Version of the newest list", newest, ""),
    )
    return Tiles(
        tiles=[
            Tile(
                label=label,
                value=value,
                note=note,
                tone="bad" if label.startswith("Late") and failed > 0.01 else "plain",
            )
            for label, value, note in rows
        ]
    )


def _traffic(view: View) -> list[Block]:
    """Draw lists by version and by surface."""
    note = (
        "How many lists were served, in a colour for each bundle. A dashed line is a swap: from "
        "then on another bundle made most lists."
    )
    blocks: list[Block] = [
        _bars(view, ("versions", "Lists by version", note), view.lists, "bundle")
    ]
    if view.swaps:
        table = Table(
            key="swaps",
            title="Swaps",
            note="When another bundle began to make most lists.",
            columns=[Column(label="time (UTC)", format="time"), *texts("version", "what")],
            rows=[(mark["at"], mark["label"], mark["note"]) for mark in view.swaps],
        )
        blocks.append(table)
    if len(view.surfaces) > 1:
        note = "How many lists each surface (home, search, ...) was served."
        words = ("surfaces", "Lists by surface", note)
        blocks.append(_bars(view, words, view.lists, "surface"))
    return blocks


def _sources(view: View) -> list[Block]:
    """Draw the sources of shown items."""
    note = (
        "Share of shown items by the source that leads them; a source that vanishes has failed or "
        "its model was released without it."
    )
    counted = view.sources.rename({"items": "lists"})
    words = ("sources", "Sources of shown items", note)
    return [_bars(view, words, counted, "source", is_share=True)]


def _bars(
    view: View,
    words: tuple[str, str, str],
    counted: pl.DataFrame,
    column: str,
    *,
    is_share: bool = False,
) -> Chart:
    """Draw stacked bars of the largest series, the rest as one; ``words``: key, title, note."""
    series = pl.col(column).cast(pl.String)
    totals = counted.group_by(series).agg(pl.col("lists").sum()).sort("lists", column)
    names = totals[column].to_list()[::-1]
    shown = names if len(names) <= MAX_SERIES else names[: MAX_SERIES - 1]
    order = [*shown, *([REST] if len(shown) < len(names) else [])]
    named = pl.when(series.is_in(shown)).then(series).otherwise(pl.lit(REST)).alias("series")
    parts = (
        counted.group_by("step_ms", named)
        .agg(pl.col("lists").sum())
        .with_columns((pl.col("lists") / pl.col("lists").sum().over("step_ms")).alias("share"))
        .with_columns(pl.col("series").replace_strict(order, range(len(order))).alias("place"))
        .sort("step_ms", "place")
        .with_columns(pl.col("share" if is_share else "lists").alias("y").cast(pl.Float64))
        .with_columns(pl.col("y").cum_sum().over("step_ms").alias("high"))
    )
    rows: list[Row] = [
        (
            *(iso(one["step_ms"]), iso(view.until(one["step_ms"])), one["series"], one["lists"]),
            *(round(one["share"], 6), round(one["high"] - one["y"], 6), round(one["high"], 6)),
        )
        for one in parts.to_dicts()
    ]
    key, title, note = words
    times = [Column(label=label, format="time") for label in ("from", "until")]
    return figure(
        time_bars,
        key,
        title,
        note,
        [*times, *texts("series"), *counts("count"), *shares("share"), *numbers("bottom", "top")],
        rows,
        "at until series - - low high",
        colors=colors_of(order),
        y_title="share of shown items" if is_share else f"lists per {view.step}",
        y_format=".0%" if is_share else "~s",
        marks=view.swaps,
    )


def _over_time(
    view: View, words: tuple[str, str, str], frame: pl.DataFrame, columns: Sequence[Column],
    **settings: Any,
) -> Chart:  # fmt: skip
    """Draw a line for each column of numbers; the frame has ``step_ms`` and ``lists`` too."""
    steps = frame["step_ms"].to_list()
    rows: list[Row] = [
        (iso(step), column.label, frame[column.label][place], frame["lists"][place], stretch)
        for column in columns
        for place, (step, stretch) in enumerate(zip(steps, view.stretches(steps), strict=True))
    ]
    value = Column(label=settings["y_title"], numeric=True, format=columns[0].format)
    key, title, note = words
    return figure(
        line_chart,
        key,
        title,
        note,
        [
            Column(label="from", format="time"),
            *texts("series"),
            value,
            *counts("lists"),
            *numbers("stretch"),
        ],
        rows,
        "x series y - stretch",
        time=True,
        from_zero=True,
        marks=view.swaps,
        **settings,
    )


def _latency(view: View) -> list[Block]:
    """Draw quantiles of a stage over time, and of every stage over the whole range."""
    if view.times.is_empty():
        return [Words(lines=[NOT_KEPT], tone="note")]
    own = quantiles(view.times.filter(pl.col("stage") == view.stage), ["step_ms"], QUANTILES)
    note = (
        f"Half of the lists of each {view.step} took at most p50, 95 of 100 at most p95, 99 at "
        "most p99, within 5%. A dashed line is a swap of the bundle."
    )
    words = ("latency", f"Milliseconds of {view.stage}", note)
    columns = numbers(*QUANTILES)
    over_time = _over_time(view, words, own, columns, y_title="milliseconds")
    wanted = {"p5": 0.05, **QUANTILES, "longest": 1.0}
    found = {row["stage"]: row for row in quantiles(view.times, ["stage"], wanted).to_dicts()}
    by_stage = figure(
        interval_chart,
        "stages",
        "Where the time goes",
        "The dot is the median of a stage, the line holds 90 of 100 lists of the range.",
        [
            *texts("stage"),
            *numbers(*(f"{name} (ms)" for name in wanted)),
            *counts("lists"),
            *texts("what it does"),
        ],
        [
            (
                stage,
                *(round(found[stage][name], 4) for name in wanted),
                *(found[stage]["lists"], STAGE_MEANINGS[stage]),
            )
            for stage in STAGES
            if stage in found
        ],
        "label low mean high - - - -",
        x_title="milliseconds",
    )
    missing = view.total - int(view.lists["timed"].sum())
    line = f"{missing:,} of {view.total:,} lists were kept without times."
    left = [Words(lines=[line], tone="note")] if missing else []
    return [over_time, by_stage, *left]


def _degraded(view: View) -> list[Block]:
    """Draw shares of lists that were degraded or made by a fallback, with the reasons."""
    series = {"late or failed part": "", "fallback": "", "unknown user": "unknown_user"}
    counted = (
        view.lists.group_by("step_ms")
        .agg(
            *(
                (pl.col(column or name).sum() / pl.col("lists").sum()).alias(name)
                for name, column in series.items()
            ),
            pl.col("lists").sum(),
        )
        .sort("step_ms")
    )
    note = (
        "Share of lists in which a part was late or failed, that a fallback alone made, or whose "
        "user the bundle does not know."
    )
    words = ("degraded", "Degraded lists over time", note)
    settings = {"y_title": "share of lists", "y_format": ".1%"}
    chart = _over_time(view, words, counted, shares(*series), **settings)
    names = (*CODES, "no user", "fallback")
    known = view.lists.select(pl.col(*names).sum()).row(0, named=True)
    rows = [
        (code, known[code], known[code] / max(1, view.total), meaning)
        for code, meaning in sorted(CODE_MEANINGS.items(), key=lambda one: -known[one[0]])
        if known[code]
    ]
    table = Table(
        key="codes",
        title="Reasons",
        note="A list may have several. Codes are those of the reply's field degraded.",
        columns=[*texts("code"), *counts("lists"), *shares("share"), *texts("what it means")],
        rows=rows,
    )
    return [chart, table]


def build_blocks(view: View) -> list[Block]:
    """Build the tiles and the sections of served lists."""
    without_wait = "Without the wait for a worker, and without the network."
    refused = (
        "Requests that were refused before any list was made (503, overload) are not in the log; "
        "the part Live server counts them."
    )
    parts = (
        ("traffic", "Traffic", "", _traffic(view)),
        ("latency", "Time of a list by stage", without_wait, _latency(view)),
        ("degraded", "Degraded lists, and why", refused, _degraded(view)),
        ("sources", "Sources", "", _sources(view)),
    )
    sections = [
        Section(key=key, title=title, note=note, blocks=blocks)
        for key, title, note, blocks in parts
    ]
    return [_tiles(view), *sections]
