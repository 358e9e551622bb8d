"""How charts look, and how they become something a browser draws.

Charts are written in Vega-Lite; the page that shows them compiles them. Colours are CSS variables,
so one drawing serves light and dark pages. Marks are hidden from screen readers; each chart has a
description and a table of its values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import altair as alt
import vl_convert

NUM_COLORS = 14
"""Of `palette.css`; a report has a model for each."""
LOW_ROW = 15
"""Height of one model's line within a group, in pixels."""
LINES_HEIGHT = 220
"""Of a chart of lines, in pixels."""
QUARTERS = [0, 0.25, 0.5, 0.75, 1]
"""Ticks of an axis of shares: as many as a phone has room for."""
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif"
INK, QUIET, LINE = "var(--ink)", "var(--quiet)", "var(--line)"
SHARED, NOBODY, SECOND = "var(--shared)", "var(--nobody)", "var(--second)"

AXIS = {
    "labelColor": QUIET,
    "titleColor": QUIET,
    "gridColor": LINE,
    "domainColor": LINE,
    "tickColor": LINE,
    "labelFontSize": 12,
    "titleFontSize": 12,
    "titleFontWeight": "normal",
    "labelLimit": 165,
    "tickSize": 4,
}
CONFIG = {
    "font": FONT,
    "background": None,
    "aria": False,
    "padding": 2,
    "view": {"stroke": None},
    "axis": AXIS,
    "axisY": {"ticks": False, "domain": False, "labelColor": INK, "labelPadding": 8},
    "axisX": {"domain": False, "tickCount": 5, "grid": True, "titlePadding": 8},
}


def color_of(place: int) -> str:
    """Name the page's colour of the model at a position of the list of models."""
    return f"var(--m{place % NUM_COLORS})"


def group_color(place: int) -> str:
    """Name the page's colour of a group size, the smallest first."""
    return f"var(--group{place})"


def spec_of(chart: Any) -> dict[str, Any]:
    """Write a chart as wide as its container in Vega-Lite."""
    # Altair checks a spec for longer than a page may take; a wrong one fails where it is compiled.
    spec: dict[str, Any] = chart.properties(width="container").to_dict(validate=False)
    return {**spec, "config": CONFIG}


def values(rows: Sequence[Any]) -> Any:
    """Pass rows to Altair."""
    return {"values": [vars(row) for row in rows]}


def colored(colors: Mapping[str, str]) -> Any:
    """Colour each series; the page draws the legend."""
    scale = alt.Scale(domain=list(colors), range=list(colors.values()))
    return alt.Color("series:N", scale=scale, legend=None)


@cache
def embedding_script() -> str:
    """Bundle Vega-Lite, Vega and its interpreter, as ``vegaEmbed``: 898 kB.

    With the interpreter (``ast``) a page can forbid the evaluation of strings.
    """
    module = f"https://cdn.jsdelivr.net/npm/vega-embed@{vl_convert.get_vega_embed_version()}/+esm"
    snippet = f"import embed from {json.dumps(module)}; window.vegaEmbed = embed;"
    script: str = vl_convert.javascript_bundle(snippet)
    return script
