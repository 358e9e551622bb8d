"""What was served: lists over time, by version, surface and source; what was degraded, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from pipelines.dashboard.service.columns import CODES
from pipelines.dashboard.service.view import View, clock, iso
from pipelines.pages.charts.style import color_of
from pipelines.pages.charts.timelines import Mark, Part, TimePoint, time_bars, time_lines
from pipelines.pages.columns import counts, shares, texts
from pipelines.pages.document import Block, Cell, Chart, Column, Section, Table, Tile, Tiles

MEANINGS = {
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


def tiles_of(view: View) -> Tiles:
    """Sum the range up."""
    lists = view.lists
    total = lists.height
    quantiles = [_quantile(view.timed["total_ms"], q) for q in (0.5, 0.95, 0.99)]
    known = [f"{value:.1f}" if value is not None else "-" for value in quantiles]
    failed, fallback = view.share("late or failed part"), view.share("fallback")
    unknown, visitors = view.share("unknown_user"), view.share("no user")
    newest = lists["bundle"][lists["time_ms"].arg_max() or 0] if total else "none"
    return Tiles(
        tiles=(
            Tile(label="Lists served", value=f"{total:,}", note=_span(view)),
            Tile(
                label="Time of a list, p95",
                value=f"{known[1]} ms" if quantiles[1] is not None else "not kept",
                note=f"p50 {known[0]} ms, p99 {known[2]} ms"
                if quantiles[1] is not None
                else "these lists were logged without times",
            ),
            Tile(
                label="Late or failed parts",
                value=f"{failed:.2%}",
                note="lists that say so in degraded",
                tone="bad" if failed > 0.01 else "plain",
            ),
            Tile(
                label="Fallback", value=f"{fallback:.2%}", note="lists made of popular items alone"
            ),
            Tile(
                label="Users that the bundle does not know",
                value=f"{unknown:.2%}",
                note=f"of all lists; {visitors:.2%} more named no user",
            ),
            Tile(label="Version of the newest list", value=newest),
        )
    )


def traffic_section(view: View) -> Section:
    """Draw lists by version and by surface."""
    marks = view.swaps
    by_version = _bars(
        view,
        "versions",
        "Lists by version",
        "How many lists were served, in a colour for each bundle. A dashed line is a swap: from "
        "then on another bundle made most lists.",
        _counted(view, "bundle"),
        marks,
    )
    blocks: list[Block] = [by_version]
    if marks:
        blocks.append(_swaps_table(view, marks))
    if len(view.surfaces) > 1:
        note = "How many lists each surface (home, search, ...) was served."
        counted = _counted(view, "surface")
        blocks.append(_bars(view, "surfaces", "Lists by surface", note, counted, marks))
    return Section(key="traffic", title="Traffic", blocks=blocks)


def sources_section(view: View) -> Section:
    """Draw where shown items came from."""
    counted = (
        view.sources.group_by("step_ms", "source")
        .agg(pl.col("items").sum().alias("count"))
        .with_columns(
            pl.col("source").cast(pl.String).alias("series"),
            (pl.col("count") / pl.col("count").sum().over("step_ms")).alias("y"),
        )
    )
    note = (
        "Share of shown items by the source that leads them; a source that vanishes has failed or "
        "its model was released without it."
    )
    chart = _bars(
        view,
        "sources",
        "Sources of shown items",
        note,
        counted,
        view.swaps,
        y_title="share of shown items",
        y_format=".0%",
    )
    return Section(key="sources", title="Sources", blocks=[chart])


def degraded_section(view: View) -> Section:
    """Draw shares of lists that were degraded or made by a fallback, and say why."""
    series = {"late or failed part": "", "fallback": "", "unknown user": "unknown_user"}
    columns = {name: pl.col(column or name) for name, column in series.items()}
    counted = view.counts.group_by("step_ms").agg(
        *((column.sum() / pl.col("lists").sum()).alias(name) for name, column in columns.items()),
        pl.col("lists").sum(),
    )
    colors = {name: color_of(place) for place, name in enumerate(series)}
    rows = counted.sort("step_ms").to_dicts()
    stretches = view.stretches([row["step_ms"] for row in rows])
    points = [
        TimePoint(
            at=iso(row["step_ms"]),
            y=row[name],
            series=name,
            stretch=stretches[row["step_ms"]],
            note=f"{clock(row['step_ms'])}: {name} {row[name]:.2%} of {row['lists']:,} lists",
        )
        for row in rows
        for name in series
    ]
    chart = Chart(
        key="degraded",
        title="Degraded lists over time",
        note="Share of lists in which a part was late or failed, that a fallback alone made, or "
        "whose user the bundle does not know.",
        description="Shares of degraded lists by stretch of time.",
        spec=time_lines(points, colors, y_title="share of lists", y_format=".1%", marks=view.swaps),
        legend=colors,
        columns=("from (UTC)", "lists", *series),
        rows=[
            (clock(row["step_ms"]), row["lists"], *(round(row[name], 6) for name in series))
            for row in rows
        ],
        origins=view.origins,
    )
    return Section(
        key="degraded",
        title="Degraded lists, and why",
        blocks=[chart, _codes_table(view)],
        note="Requests that were refused before any list was made (503, overload) are not in the "
        "log; the part Live server counts them.",
    )


def _codes_table(view: View) -> Table:
    total = max(1, view.lists.height)
    degraded = view.counts.select(pl.col(*CODES, "no user", "fallback").sum()).row(0, named=True)
    rows: list[Sequence[Cell]] = [
        (code, count, count / total, meaning)
        for code, meaning in MEANINGS.items()
        if (count := degraded[code])
    ]
    rows.sort(key=lambda row: -int(row[1] or 0))
    return Table(
        key="codes",
        title="Reasons",
        note="A list may have several. Codes are those of the reply's field degraded.",
        columns=[*texts("code"), *counts("lists"), *shares("share"), *texts("what it means")],
        rows=rows,
        origins=view.origins,
    )


def _swaps_table(view: View, marks: Sequence[Mark]) -> Table:
    return Table(
        key="swaps",
        title="Swaps",
        note="When another bundle began to make most lists.",
        columns=[Column(label="time (UTC)", format="time"), *texts("version", "what")],
        rows=[(mark.at, mark.label, mark.note) for mark in marks],
        origins=view.origins,
    )


def _counted(view: View, column: str) -> pl.DataFrame:
    counted = view.counts.group_by("step_ms", column).agg(pl.col("lists").sum().alias("count"))
    return counted.with_columns(
        pl.col(column).cast(pl.String).alias("series"), pl.col("count").cast(pl.Float64).alias("y")
    )


def _bars(
    view: View,
    key: str,
    title: str,
    note: str,
    counted: pl.DataFrame,
    marks: Sequence[Mark],
    *,
    y_title: str = "",
    y_format: str = "~s",
) -> Chart:
    """Draw stacked bars of the largest series, the rest as one."""
    totals = counted.group_by("series").agg(pl.col("count").sum()).sort("count", "series")
    names = totals["series"].to_list()[::-1]
    shown = names if len(names) <= MAX_SERIES else names[: MAX_SERIES - 1]
    named = pl.when(pl.col("series").is_in(shown)).then(pl.col("series")).otherwise(pl.lit(REST))
    rows = (
        counted.group_by("step_ms", named.alias("series"))
        .agg(pl.col("count").sum(), pl.col("y").sum())
        .to_dicts()
    )
    order = [*shown, *([REST] if len(shown) < len(names) else [])]
    rows.sort(key=lambda row: (row["step_ms"], order.index(row["series"])))
    colors = {name: color_of(place) for place, name in enumerate(order)}
    is_share = y_format.endswith("%")
    return Chart(
        key=key,
        title=title,
        note=note,
        description=f"Stacked bars by {view.step}: {', '.join(order)}.",
        spec=time_bars(
            _stacked(view, rows, is_share=is_share),
            colors,
            y_title=y_title or f"lists per {view.step}",
            y_format=y_format,
            marks=marks,
        ),
        legend=colors,
        columns=("from (UTC)", "series", "count", *(["share"] if is_share else [])),
        rows=[
            (
                clock(row["step_ms"]),
                row["series"],
                row["count"],
                *([round(row["y"], 6)] if is_share else []),
            )
            for row in rows
        ],
        origins=view.origins,
    )


def _stacked(view: View, rows: Sequence[Mapping[str, Any]], *, is_share: bool) -> list[Part]:
    """Lay the parts of each stretch on each other, in their order."""
    parts, tops = [], dict[int, float]()
    for row in rows:
        begin, low = row["step_ms"], tops.get(row["step_ms"], 0.0)
        tops[begin] = low + row["y"]
        share = f" ({row['y']:.1%})" if is_share else ""
        parts.append(
            Part(
                at=iso(begin),
                until=iso(view.until(begin)),
                low=low,
                high=tops[begin],
                series=row["series"],
                note=f"{clock(begin)}: {row['series']} {row['count']:,}{share}",
            )
        )
    return parts


def _quantile(values: pl.Series, q: float) -> float | None:
    found = values.quantile(q, "linear")
    return None if found is None else float(found)


def _span(view: View) -> str:
    if not view.lists.height:
        return "no list in this range"
    return f"{clock(view.begin_ms)} to {clock(view.end_ms)} UTC"
