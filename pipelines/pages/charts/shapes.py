"""The charts of reports and pages, written in Vega-Lite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import altair as alt

from pipelines.pages.charts.style import (
    INK,
    LINE,
    LINES_HEIGHT,
    LOW_ROW,
    QUARTERS,
    QUIET,
    SECOND,
    SHARED,
    colored,
    spec_of,
    values,
)

BANDS = {"name": "bands"}


@dataclass(frozen=True, kw_only=True)
class Dot:
    """A value with its interval."""

    label: str
    """Row of the chart."""
    series: str
    """Line within the row."""
    mean: float
    low: float
    high: float
    note: str
    """Tooltip."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A point of a line."""

    x: float
    y: float
    series: str
    note: str


@dataclass(frozen=True, kw_only=True)
class Band:
    """An interval of a series on one day."""

    day: str
    """Such as 2026-11-22."""
    mean: float
    low: float
    high: float
    note: str
    series: str


@dataclass(frozen=True, kw_only=True)
class WatchedDay:
    """A value of one day with the band in which it is expected."""

    day: str
    value: float
    low: float | None
    """None where nothing is expected yet."""
    high: float | None
    alarm: bool
    note: str


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A part of a stacked bar."""

    label: str
    series: str
    share: float
    note: str


def interval_chart(
    dots: Sequence[Dot],
    colors: Mapping[str, str],
    *,
    x_title: str,
    labels: Sequence[str],
    rule_at: float | None = None,
) -> dict[str, Any]:
    """Draw a dot with its interval for each series of each row.

    Args:
        colors: Of each series, in their order within a row.
        labels: Rows from top to bottom; one without dots stays empty.
        rule_at: Where to draw a reference line, such as 0 for differences.
    """
    several = len(colors) > 1
    base = alt.Chart(values(dots)).encode(
        y=alt.Y("label:N", title=None, scale=alt.Scale(domain=list(labels), paddingInner=0.25)),
        color=colored(colors),
        tooltip=alt.Tooltip("note:N"),
    )
    if several:
        base = base.encode(yOffset=alt.YOffset("series:N", scale=alt.Scale(domain=list(colors))))
    scale = alt.Scale(zero=True, nice=True)
    x = alt.X("low:Q", title=x_title, scale=scale)
    layers = [
        base.mark_rule(strokeWidth=2.5, opacity=0.55).encode(x=x, x2="high:Q"),
        base.mark_point(filled=True, size=70, opacity=1).encode(x=alt.X("mean:Q", scale=scale)),
    ]
    if rule_at is not None:
        rule = alt.Chart({"values": [{"at": rule_at}]})
        layers.insert(0, rule.mark_rule(color=QUIET, strokeDash=[4, 3]).encode(x="at:Q"))
    step = alt.Step(LOW_ROW, **{"for": "offset"}) if several else alt.Step(2 * LOW_ROW)
    return spec_of(alt.layer(*layers).properties(height=step))


def line_chart(
    points: Sequence[Point],
    colors: Mapping[str, str],
    *,
    x_title: str,
    y_title: str,
    marked: Sequence[Point] = (),
    x_values: Sequence[float] | None = None,
    y_format: str = "",
    from_zero: bool = False,
) -> dict[str, Any]:
    """Draw a line for each series.

    Args:
        marked: Points to ring.
        x_values: The only values of x, on a logarithmic axis.
        y_format: Such as ".0%".
        from_zero: Let the y axis begin at 0.
    """
    axis = alt.Axis(values=list(x_values), grid=False) if x_values else alt.Axis(grid=False)
    scale = alt.Scale(type="log" if x_values else "linear", nice=False, zero=False)
    base = alt.Chart(values(points)).encode(
        x=alt.X("x:Q", title=x_title, scale=scale, axis=axis),
        y=alt.Y(
            "y:Q",
            title=y_title,
            scale=alt.Scale(zero=from_zero, nice=True),
            axis=alt.Axis(tickCount=5, titlePadding=8, format=y_format),
        ),
        color=colored(colors),
    )
    layers = [
        base.mark_line(strokeWidth=2, interpolate="linear"),
        base.mark_point(filled=True, size=30, opacity=1).encode(tooltip=alt.Tooltip("note:N")),
    ]
    if marked:
        ring = alt.Chart(values(marked)).mark_point(size=220, strokeWidth=2, color=INK)
        layers.append(ring.encode(x="x:Q", y="y:Q", tooltip=alt.Tooltip("note:N")))
    return spec_of(alt.layer(*layers).properties(height=LINES_HEIGHT))


def banded_lines(
    bands: Sequence[Band],
    colors: Mapping[str, str],
    *,
    x_title: str,
    y_title: str,
    zero_rule: bool = False,
) -> dict[str, Any]:
    """Draw a line with its band over moments for each series.

    Args:
        zero_rule: Draw a line at 0, as for differences.
    """
    spec = _banded_lines(tuple(colors.items()), x_title, y_title, zero_rule)
    return {**spec, "datasets": {BANDS["name"]: values(bands)["values"]}}


@lru_cache(256)
def _banded_lines(
    colors: tuple[tuple[str, str], ...], x_title: str, y_title: str, zero_rule: bool
) -> Any:
    """Make the chart without its values; making it takes fifty times as long as filling it in."""
    base = alt.Chart(BANDS).encode(
        x=alt.X("day:T", title=x_title, scale=alt.Scale(type="utc"), axis=alt.Axis(grid=False)),
        color=colored(dict(colors)),
    )
    axis = alt.Axis(tickCount=5, titlePadding=8)
    low = alt.Y("low:Q", title=y_title, scale=alt.Scale(zero=True, nice=True), axis=axis)
    layers = [
        base.mark_area(opacity=0.15).encode(y=low, y2="high:Q"),
        base.mark_line(strokeWidth=2).encode(y="mean:Q"),
        base.mark_point(filled=True, size=30, opacity=1).encode(
            y="mean:Q", tooltip=alt.Tooltip("note:N")
        ),
    ]
    if zero_rule:
        rule = alt.Chart({"values": [{"at": 0}]}).mark_rule(color=QUIET, strokeDash=[4, 3])
        layers.append(rule.encode(y="at:Q"))
    return spec_of(alt.layer(*layers).properties(height=LINES_HEIGHT))


def watched_chart(
    days: Sequence[WatchedDay], *, y_title: str, y_format: str = ""
) -> dict[str, Any]:
    """Draw a line over days in front of the band in which it is expected; alarms are ringed."""
    base = alt.Chart(values(days)).encode(
        x=alt.X("day:T", title="day (UTC)", scale=alt.Scale(type="utc"), axis=alt.Axis(grid=False))
    )
    axis = alt.Axis(tickCount=5, titlePadding=8, format=y_format)
    scale = alt.Scale(zero=False, nice=True)
    layers = [
        base.mark_line(color=SECOND, strokeWidth=1.5).encode(
            y=alt.Y("value:Q", title=y_title, scale=scale, axis=axis)
        ),
        base.mark_point(color=SECOND, filled=True, size=14, opacity=1).encode(
            y="value:Q", tooltip=alt.Tooltip("note:N")
        ),
    ]
    # A layer without values would have an axis without ends.
    if any(day.high is not None for day in days):
        expected = base.transform_filter("datum.high != null")
        band = expected.mark_area(color=SHARED, opacity=0.25)
        layers.insert(0, band.encode(y=alt.Y("low:Q"), y2="high:Q"))
    if any(day.alarm for day in days):
        alarms = base.transform_filter("datum.alarm")
        layers.append(
            alarms.mark_point(color=INK, size=160, strokeWidth=2).encode(
                y="value:Q", tooltip=alt.Tooltip("note:N")
            )
        )
    return spec_of(alt.layer(*layers).properties(height=LINES_HEIGHT))


def gap_chart(
    dots: Sequence[Dot], colors: Mapping[str, str], *, x_title: str, labels: Sequence[str]
) -> dict[str, Any]:
    """Draw the dots of a row on one line, joined, so that the gap between shares shows."""
    rows: dict[str, list[float]] = {}
    for dot in dots:
        rows.setdefault(dot.label, []).append(dot.mean)
    gaps = [
        {"label": label, "low": min(means), "high": max(means)} for label, means in rows.items()
    ]
    y = alt.Y("label:N", title=None, scale=alt.Scale(domain=list(labels)))
    scale, axis = alt.Scale(domain=[0, 1]), alt.Axis(format=".0%", values=QUARTERS)
    joined = (
        alt.Chart({"values": gaps})
        .mark_rule(strokeWidth=3, color=LINE)
        .encode(y=y, x=alt.X("low:Q", title=x_title, scale=scale, axis=axis), x2="high:Q")
    )
    ends = (
        alt.Chart(values(dots))
        .mark_point(filled=True, size=110, opacity=1)
        .encode(
            y=y,
            x=alt.X("mean:Q", scale=scale, axis=axis),
            color=colored(colors),
            tooltip=alt.Tooltip("note:N"),
        )
    )
    return spec_of(alt.layer(joined, ends).properties(height=alt.Step(34)))


def share_chart(
    bars: Sequence[Bar], colors: Mapping[str, str], *, x_title: str, labels: Sequence[str]
) -> dict[str, Any]:
    """Draw a bar of parts for each label; the parts of a bar sum to 1."""
    order = {series: place for place, series in enumerate(colors)}
    rows = [{**vars(bar), "order": order[bar.series]} for bar in bars]
    chart = (
        alt.Chart({"values": rows})
        .mark_bar(height={"band": 0.72})
        .encode(
            y=alt.Y("label:N", title=None, scale=alt.Scale(domain=list(labels))),
            x=alt.X(
                "share:Q",
                title=x_title,
                scale=alt.Scale(domain=[0, 1]),
                axis=alt.Axis(format=".0%", values=QUARTERS),
            ),
            color=colored(colors),
            order=alt.Order("order:Q"),
            tooltip=alt.Tooltip("note:N"),
        )
    )
    return spec_of(chart.properties(height=alt.Step(30)))
