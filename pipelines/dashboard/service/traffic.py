"""Served lists: how many, how fast, from which sources, and which were degraded and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import polars as pl

from pipelines.dashboard.query import Query
from pipelines.dashboard.service.request_log import LATE, MINUTE_MS, Logged, quantiles
from pipelines.pages.charts import (
    counts,
    figure,
    line_chart,
    numbers,
    shares,
    texts,
)
from pipelines.pages.document import (
    Block,
    Chart,
    Column,
    Control,
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
STEPS = {"minute": 1, "10 minutes": 10, "hour": 60, "day": 1_440}
"""Minutes of a step of the charts."""
FEW_STEPS = 60
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
    "times. The server's own metrics (/metrics) have them."
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


def clock(time_ms: int) -> str:
    """Format a minute for people."""
    return f"{datetime.fromtimestamp(time_ms / 1_000, UTC):%Y-%m-%d %H:%M}"


def iso(time_ms: int) -> str:
    """Format a minute for charts."""
    return f"{datetime.fromtimestamp(time_ms / 1_000, UTC):%Y-%m-%dT%H:%M:%SZ}"


@dataclass(frozen=True, kw_only=True)
class Served:
    """The counts of a range of time and a surface."""

    counts: pl.DataFrame
    """`COUNTS` with ``step_ms``, the begin of their step."""
    total: int
    """Lists of the range."""
    step: str

    @classmethod
    def choose(cls, logged: Logged, query: Query) -> tuple[Served, Sequence[Control]]:
        """Choose by the parameters ``range`` and ``surface``; the controls offer both."""
        rows = logged.counts
        surfaces = [ALL, *sorted(rows["surface"].cast(pl.String).unique().to_list())]
        surface = query.choice("surface", surfaces, ALL)
        chosen = query.choice("range", RANGES, "24h")
        oldest, newest = logged.span or (0, 0)
        minutes = RANGES[chosen][1]
        begin_ms = max(oldest, newest - (minutes - 1) * MINUTE_MS) if minutes else oldest
        span = (newest - begin_ms) // MINUTE_MS
        step = next((name for name, size in STEPS.items() if span <= FEW_STEPS * size), "day")
        length = STEPS[step] * MINUTE_MS
        kept = pl.col("minute_ms") >= begin_ms
        if surface != ALL:
            kept &= pl.col("surface") == surface
        of_step = (pl.col("minute_ms") // length * length).alias("step_ms")
        rows = rows.filter(kept).with_columns(of_step)
        total = int(rows.filter(pl.col("kind") == "bundle")["count"].sum())
        labels = {name: label for name, (label, _) in RANGES.items()}
        return cls(counts=rows, total=total, step=step), (
            select("range", "Time", chosen, labels),
            select("surface", "Surface", surface, {one: one for one in surfaces}),
        )

    def of_kind(self, kind: str) -> pl.DataFrame:
        """Keep the counts of a kind."""
        return self.counts.filter(pl.col("kind") == kind)

    def named(self, kind: str) -> dict[str, int]:
        """Sum the counts of a kind by name, the largest first."""
        found = self.of_kind(kind).group_by("name").agg(pl.col("count").sum().cast(pl.Int64))
        found = found.with_columns(pl.col("name").cast(pl.String))
        return dict(found.sort("count", "name", descending=[True, False]).iter_rows())


def build_blocks(served: Served) -> list[Block]:
    """Build the tiles, lists by bundle, latency, degraded lists and sources."""
    return [_tiles(served), _bundles(served), *_latency(served), _codes(served), _sources(served)]


def _tiles(served: Served) -> Tiles:
    """Summarise the range."""
    failed = served.named("code").get(LATE, 0) / max(1, served.total)
    totals = served.of_kind("stage").filter(pl.col("name") == "total")
    took = quantiles(totals, ["kind"], QUANTILES)
    p95, kept = "not kept", "these lists were logged without times"
    if took.height:
        ms = took.row(0, named=True)
        p95, kept = f"{ms['p95']:.1f} ms", f"p50 {ms['p50']:.1f} ms, p99 {ms['p99']:.1f} ms"
    minutes = sorted(served.counts["minute_ms"].unique().to_list())
    span = f"{clock(minutes[0])} to {clock(minutes[-1])} UTC" if minutes else "none in this range"
    newest = served.of_kind("bundle").sort("minute_ms", "count")["name"]
    return Tiles(
        tiles=[
            Tile(label="Lists served", value=f"{served.total:,}", note=span),
            Tile(label="Time of a list, p95", value=p95, note=kept),
            Tile(
                label="Late or failed parts",
                value=f"{failed:.2%}",
                note="lists that say so in degraded",
                tone="bad" if failed > 0.01 else "plain",
            ),
            Tile(label="Version of the newest list", value=newest[-1] if len(newest) else "none"),
        ]
    )


def _over_time(
    served: Served, key: str, title: str, note: str, value: Column, found: pl.DataFrame
) -> Chart:
    """Draw a line for each series; ``found`` has the columns step_ms, series and value.

    Steps without lists part a line into stretches that are not joined.
    """
    length = STEPS[served.step] * MINUTE_MS
    gap = pl.col("step_ms").diff().fill_null(length) > length
    stretch = gap.cum_sum().over("series").alias("stretch")
    rows = found.sort("step_ms", maintain_order=True).with_columns(stretch).to_dicts()
    return figure(
        line_chart,
        key,
        title,
        note,
        [Column(label="from", format="time"), *texts("series"), value, *numbers("stretch")],
        [(iso(row["step_ms"]), row["series"], row["value"], row["stretch"]) for row in rows],
        "x series y stretch",
        y_title=value.label,
        time=True,
        from_zero=True,
    )


def _bundles(served: Served) -> Chart:
    """Draw lists by bundle over time, those of few lists as one."""
    shown = list(served.named("bundle"))[: MAX_SERIES - 1]
    name = pl.col("name").cast(pl.String)
    series = pl.when(name.is_in(shown)).then(name).otherwise(pl.lit(REST)).alias("series")
    found = served.of_kind("bundle").group_by("step_ms", series)
    (value,) = counts("lists")
    return _over_time(
        served,
        "versions",
        "Lists by version",
        f"Lists that were served each {served.step}, a line for each bundle.",
        value,
        found.agg(pl.col("count").sum().cast(pl.Int64).alias("value")).sort("series"),
    )


def _latency(served: Served) -> list[Block]:
    """Draw quantiles of the time of a list, and tabulate those of every stage."""
    times = served.of_kind("stage")
    if times.is_empty():
        return [Words(lines=[NOT_KEPT], tone="note")]
    own = quantiles(times.filter(pl.col("name") == "total"), ["step_ms"], QUANTILES)
    (value,) = numbers("milliseconds")
    over_time = _over_time(
        served,
        "latency",
        "Milliseconds of a list",
        f"Half of the lists of each {served.step} took at most p50, 95 of 100 at most p95, 99 at "
        "most p99, within 5%; without the wait for a worker and the network.",
        value,
        own.drop("lists").unpivot(index="step_ms", variable_name="series"),
    )
    found = {row["name"]: row for row in quantiles(times, ["name"], QUANTILES).to_dicts()}
    missing = served.total - (found["total"]["lists"] if "total" in found else 0)
    by_stage = Table(
        key="stages",
        title="Where the time goes",
        note=f"{missing:,} of {served.total:,} lists were kept without times." if missing else "",
        columns=[
            *texts("stage"),
            *numbers(*(f"{name} (ms)" for name in QUANTILES)),
            *counts("lists"),
            *texts("what it does"),
        ],
        rows=[
            (
                stage,
                *(round(found[stage][name], 4) for name in QUANTILES),
                *(found[stage]["lists"], STAGE_MEANINGS[stage]),
            )
            for stage in STAGES
            if stage in found
        ],
    )
    return [over_time, by_stage]


def _codes(served: Served) -> Table:
    return Table(
        key="codes",
        title="Degraded lists, and why",
        note="A list may have several codes; they are those of the reply's field degraded. "
        "Requests that were refused before any list was made (503, overload) are not in the log; "
        "the server's /metrics count them.",
        columns=[*texts("code"), *counts("lists"), *shares("share"), *texts("what it means")],
        rows=[
            (code, count, count / max(1, served.total), CODE_MEANINGS[code])
            for code, count in served.named("code").items()
            if code != LATE
        ],
    )


def _sources(served: Served) -> Table:
    found = served.named("source")
    return Table(
        key="sources",
        title="Sources of shown items",
        note="By the source that leads an item; a source that vanishes has failed, or its model "
        "was released without it.",
        columns=[*texts("source"), *counts("items"), *shares("share")],
        rows=[(name, count, count / sum(found.values())) for name, count in found.items()],
    )


def arms_table(logged: Logged) -> Table | None:
    """Count the lists of every arm of an experiment; None without any."""
    arms = logged.counts.filter(pl.col("kind") == "arm").with_columns(
        pl.col("name").cast(pl.String)
    )
    if arms.is_empty():
        return None
    found = arms.group_by("name").agg(
        pl.col("count").sum().cast(pl.Int64),
        pl.col("minute_ms").min().alias("first"),
        pl.col("minute_ms").max().alias("last"),
    )
    return Table(
        key="arms",
        title="Arms that were served",
        note="",
        columns=[
            *texts("experiment: arm"),
            *counts("lists"),
            *(Column(label=label, format="time") for label in ("first", "last")),
        ],
        rows=[
            (name, count, iso(first), iso(last))
            for name, count, first, last in found.sort("name").iter_rows()
        ],
    )
