"""Bars of a quantity by name, such as the seconds of each stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from pipelines.pages.charts.style import color_of, spec_of, values


@dataclass(frozen=True, kw_only=True)
class Cost:
    """A bar."""

    label: str
    amount: float
    note: str
    """Tooltip."""


def cost_chart(costs: Sequence[Cost], *, x_title: str) -> dict[str, Any]:
    """Draw a bar for each label, in their order from top to bottom."""
    labels = [cost.label for cost in costs]
    chart = (
        alt.Chart(values(costs))
        .mark_bar(color=color_of(0), height={"band": 0.72})
        .encode(
            y=alt.Y("label:N", title=None, scale=alt.Scale(domain=labels)),
            x=alt.X("amount:Q", title=x_title, scale=alt.Scale(zero=True, nice=True)),
            tooltip=alt.Tooltip("note:N"),
        )
    )
    return spec_of(chart.properties(height=alt.Step(24)))
