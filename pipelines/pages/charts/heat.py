"""A table of cells whose shade is a value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from pipelines.pages.charts.style import INK, LOW_ROW, spec_of, values


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell."""

    row: str
    column: str
    value: float
    """Decides the shade, from 0."""
    text: str
    """Written in the cell."""
    note: str
    """Tooltip."""


def heat_chart(
    cells: Sequence[Cell], color: str, *, rows: Sequence[str], columns: Sequence[str], x_title: str
) -> dict[str, Any]:
    """Draw cells in rows and columns; the largest value has the full colour.

    Args:
        color: Of the page; a shade is its opacity, so that it fits light and dark.
    """
    most = max((cell.value for cell in cells), default=1.0) or 1.0
    base = alt.Chart(values(cells)).encode(
        x=alt.X(
            "column:N",
            title=x_title,
            scale=alt.Scale(domain=list(columns)),
            axis=alt.Axis(labelAngle=0, orient="top", grid=False),
        ),
        y=alt.Y("row:N", title=None, scale=alt.Scale(domain=list(rows))),
        tooltip=alt.Tooltip("note:N"),
    )
    shade = alt.Opacity(
        "value:Q", scale=alt.Scale(domain=[0, most], range=[0.04, 0.8]), legend=None
    )
    layers = [
        base.mark_rect(color=color, stroke=None).encode(opacity=shade),
        base.mark_text(color=INK, fontSize=11).encode(text="text:N"),
    ]
    return spec_of(alt.layer(*layers).properties(height=alt.Step(2 * LOW_ROW)))
