"""Charts over moments of UTC: lines, stacked bars, spans, with marks for what happened then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from pipelines.pages.charts.style import (
    INK,
    LINES_HEIGHT,
    QUIET,
    colored,
    spec_of,
)

ROW_HEIGHT = 24
"""Of one row of spans, in pixels."""
X_TITLE = "time (UTC)"
POINTS, MARKS = {"name": "points"}, {"name": "marks"}
TIME_FORMAT = {
    **dict.fromkeys(("hours", "minutes"), "%H:%M"),
    **dict.fromkeys(("seconds", "milliseconds"), "%H:%M:%S"),
    **dict.fromkeys(("date", "day", "week"), "%b %d"),
    "month": "%b %Y",
    "quarter": "%b %Y",
    "year": "%Y",
}
"""By the unit of a tick."""


@dataclass(frozen=True, kw_only=True)
class TimePoint:
    """A value at a moment."""

    at: str
    """ISO 8601 with its zone, such as 2026-11-22T17:15:05+00:00."""
    y: float
    series: str
    note: str
    stretch: int = 0
    """Points of different stretches are not joined: nothing is known in between."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of the bar of a stretch of time."""

    at: str
    until: str
    low: float
    high: float
    series: str
    note: str


@dataclass(frozen=True, kw_only=True)
class Span:
    """From one moment to another, on the row of its label."""

    label: str
    series: str
    at: str
    until: str
    note: str


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Something that happened at a moment; on a row where it has a label."""

    at: str
    note: str
    label: str = ""
    series: str = ""


def time_lines(
    points: Sequence[TimePoint],
    colors: Mapping[str, str],
    *,
    y_title: str,
    y_format: str = ",~g",
    marks: Sequence[Mark] = (),
) -> dict[str, Any]:
    """Draw a line over time for each series, and a dashed line at each mark."""
    y = alt.Y(
        "y:Q",
        title=y_title,
        scale=alt.Scale(zero=True, nice=True),
        axis=alt.Axis(tickCount=5, titlePadding=8, format=y_format),
    )
    base = alt.Chart(POINTS).encode(x=_x("at:T"), y=y, color=colored(colors))
    layers = [
        *_rules(marks),
        base.mark_line(strokeWidth=2).encode(detail="stretch:N"),
        base.mark_point(filled=True, size=24, opacity=1).encode(tooltip=alt.Tooltip("note:N")),
    ]
    return _spec(alt.layer(*layers).properties(height=LINES_HEIGHT), points, marks)


def time_bars(
    parts: Sequence[Part],
    colors: Mapping[str, str],
    *,
    y_title: str,
    y_format: str = "",
    marks: Sequence[Mark] = (),
) -> dict[str, Any]:
    """Draw a bar for each stretch of time, of parts that lie on each other."""
    axis = alt.Axis(tickCount=5, titlePadding=8, format=y_format)
    bars = alt.Chart(POINTS).encode(
        x=_x("at:T"),
        x2="until:T",
        y=alt.Y("low:Q", title=y_title, axis=axis, scale=alt.Scale(zero=True, nice=True)),
        y2="high:Q",
        color=colored(colors),
        tooltip=alt.Tooltip("note:N"),
    )
    # A rectangle: Vega-Lite takes a bar with two ends in time for a horizontal one.
    layers = [bars.mark_rect(), *_rules(marks)]
    return _spec(alt.layer(*layers).properties(height=LINES_HEIGHT), parts, marks)


def spans_chart(
    spans: Sequence[Span],
    colors: Mapping[str, str],
    *,
    labels: Sequence[str],
    marks: Sequence[Mark] = (),
) -> dict[str, Any]:
    """Draw spans on the rows of their labels, and marks on theirs.

    Args:
        colors: By series, of spans and of marks.
        labels: Rows from top to bottom.
    """
    y = alt.Y("label:N", title=None, scale=alt.Scale(domain=list(labels)))
    bars = alt.Chart(POINTS).encode(
        x=_x("at:T"), x2="until:T", y=y, color=colored(colors), tooltip=alt.Tooltip("note:N")
    )
    # Round ends, so that a span of no length shows as a dot.
    layers = [bars.mark_rule(strokeWidth=9, strokeCap="round")]
    if marks:
        dots = alt.Chart(MARKS).encode(
            x=_x("at:T"), y=y, color=colored(colors), tooltip=alt.Tooltip("note:N")
        )
        layers.append(dots.mark_point(shape="cross", filled=True, size=110, angle=45, opacity=1))
    return _spec(alt.layer(*layers).properties(height=alt.Step(ROW_HEIGHT)), spans, marks)


def _spec(chart: Any, points: Sequence[Any], marks: Sequence[Mark]) -> dict[str, Any]:
    """Write a chart; its values come in at the end, since Altair copies and checks each of them."""
    named = {"points": points, **({"marks": marks} if marks else {})}
    rows = {name: [vars(one) for one in some] for name, some in named.items()}
    return {**spec_of(chart), "datasets": rows}


def _x(field: str) -> Any:
    axis = alt.Axis(grid=False, labelOverlap=True, format=TIME_FORMAT)
    return alt.X(field, title=X_TITLE, scale=alt.Scale(type="utc"), axis=axis)


def _rules(marks: Sequence[Mark]) -> list[Any]:
    if not marks:
        return []
    rules = alt.Chart(MARKS).encode(x=_x("at:T"), tooltip=alt.Tooltip("note:N"))
    return [
        rules.mark_rule(color=QUIET, strokeDash=[4, 3]),
        rules.mark_point(color=INK, shape="triangle-down", filled=True, size=50, opacity=1).encode(
            y=alt.value(4)
        ),
    ]
