"""Charts of backtests: quality by the age of models, and by what training took."""

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
    values,
)


@dataclass(frozen=True, kw_only=True)
class Aged:
    """Quality at an age, with its interval."""

    age: float
    value: float
    low: float
    high: float
    fitted: float
    series: str
    note: str


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Quality with its interval, and what it took."""

    label: str
    series: str
    seconds: float
    value: float
    low: float
    high: float
    note: str


def ageing_chart(
    points: Sequence[Aged], colors: Mapping[str, str], *, x_title: str, y_title: str
) -> dict[str, Any]:
    """Draw dots with intervals over ages, and a line through what is fitted; 100% is marked."""
    base = alt.Chart(values(points)).encode(
        x=alt.X("age:Q", title=x_title, axis=alt.Axis(grid=False), scale=alt.Scale(nice=False)),
        color=colored(colors),
    )
    axis = alt.Axis(tickCount=5, titlePadding=8, format=".0%")
    y = alt.Y("value:Q", title=y_title, scale=alt.Scale(zero=True, nice=True), axis=axis)
    whole = alt.Chart({"values": [{"at": 1}]}).mark_rule(color=QUIET, strokeDash=[4, 3])
    layers = [
        whole.encode(y="at:Q"),
        base.mark_rule(strokeWidth=1.5, opacity=0.4).encode(y=alt.Y("low:Q"), y2="high:Q"),
        base.mark_line(strokeWidth=2).encode(y="fitted:Q"),
        base.mark_point(filled=True, size=36, opacity=1).encode(y=y, tooltip=alt.Tooltip("note:N")),
    ]
    return spec_of(alt.layer(*layers).properties(height=LINES_HEIGHT))


def cost_chart(
    costs: Sequence[Cost], colors: Mapping[str, str], *, x_title: str, y_title: str
) -> dict[str, Any]:
    """Draw a labelled dot with its interval for each way that has a cost."""
    base = alt.Chart(values(costs)).encode(
        x=alt.X(
            "seconds:Q",
            title=x_title,
            axis=alt.Axis(grid=False),
            scale=alt.Scale(zero=True, nice=True),
        ),
        color=colored(colors),
    )
    axis = alt.Axis(tickCount=5, titlePadding=8)
    low = alt.Y("low:Q", title=y_title, scale=alt.Scale(zero=False, nice=True), axis=axis)
    layers = [
        base.mark_rule(strokeWidth=2.5, opacity=0.55).encode(y=low, y2="high:Q"),
        base.mark_point(filled=True, size=80, opacity=1).encode(
            y="value:Q", tooltip=alt.Tooltip("note:N")
        ),
    ]
    # Labels stand on the side where there is room.
    middle = max((one.seconds for one in costs), default=0.0) / 2
    left = base.transform_filter(f"datum.seconds <= {middle}").mark_text(align="left", dx=10)
    right = base.transform_filter(f"datum.seconds > {middle}").mark_text(align="right", dx=-10)
    layers += [
        text.encode(y="value:Q", text="label:N", color=alt.value(INK)) for text in (left, right)
    ]
    return spec_of(alt.layer(*layers).properties(height=LINES_HEIGHT))
