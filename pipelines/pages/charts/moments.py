"""Dots over time: one for each run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from pipelines.pages.charts.style import LINES_HEIGHT, colored, spec_of, values


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A value at a time."""

    time: str
    """ISO 8601, UTC."""
    y: float
    series: str
    note: str
    """Tooltip."""


def moments_chart(
    moments: Sequence[Moment], colors: Mapping[str, str], *, x_title: str, y_title: str
) -> dict[str, Any]:
    """Draw a dot for each value."""
    time = alt.X("time:T", title=x_title, scale=alt.Scale(type="utc"), axis=alt.Axis(grid=False))
    axis = alt.Axis(tickCount=5, titlePadding=8)
    chart = (
        alt.Chart(values(moments))
        .mark_point(filled=True, size=55, opacity=0.75)
        .encode(
            x=time,
            y=alt.Y("y:Q", title=y_title, scale=alt.Scale(zero=False, nice=True), axis=axis),
            color=colored(colors),
            tooltip=alt.Tooltip("note:N"),
        )
    )
    return spec_of(chart.properties(height=LINES_HEIGHT))
