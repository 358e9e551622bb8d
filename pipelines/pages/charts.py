"""Charts in Vega-Lite, drawn from the rows of their own tables.

Colours are CSS variables, so that one drawing serves light and dark pages. A chart has a table of
its values, which is also its tooltip; screen readers get the table instead of the marks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipelines.pages.document import Cell, Chart, Column, Format, LinkedCell, Origin

NUM_COLORS = 14
LOW_ROW, ROW, LINES_HEIGHT = 15, 30, 220
"""Heights in pixels: of a model's line within a group, of a row, of a chart of lines."""
INK, QUIET, LINE = "var(--ink)", "var(--quiet)", "var(--line)"
TIME_FORMAT = {
    **dict.fromkeys(("hours", "minutes"), "%H:%M"),
    **dict.fromkeys(("seconds", "milliseconds"), "%H:%M:%S"),
    **dict.fromkeys(("date", "day", "week"), "%b %d"),
    **dict.fromkeys(("month", "quarter"), "%b %Y"),
    "year": "%Y",
}
"""By the unit of a tick."""
AXIS = {
    **dict.fromkeys(("labelColor", "titleColor"), QUIET),
    **dict.fromkeys(("gridColor", "domainColor", "tickColor"), LINE),
    **dict.fromkeys(("labelFontSize", "titleFontSize"), 12),
    "titleFontWeight": "normal",
    "labelLimit": 165,
    "tickSize": 4,
}
CONFIG = {
    "font": "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif",
    "background": None,
    "aria": False,
    "padding": 2,
    "view": {"stroke": None},
    "axis": AXIS,
    "axisY": {"ticks": False, "domain": False, "labelColor": INK, "labelPadding": 8},
    "axisX": {"domain": False, "tickCount": 5, "grid": True, "titlePadding": 8},
}
SHARES: dict[str, Any] = {
    "scale": {"domain": [0, 1]},
    "axis": {"format": ".0%", "values": [0, 0.25, 0.5, 0.75, 1]},
}
"""Axis of shares; a phone has room for five ticks."""
Spec = dict[str, Any]
Mark = Mapping[str, Any]
"""A mark of a chart by the fields that it draws."""
Row = Sequence[Cell]


def color_of(place: int) -> str:
    """Return the page's colour of the model at a position of the list of models."""
    return f"var(--m{place % NUM_COLORS})"


def colors_of(names: Sequence[str], first: int = 0) -> dict[str, str]:
    """Assign a colour to each series."""
    return {name: color_of(first + place) for place, name in enumerate(names)}


def texts(*labels: str, note: str = "") -> list[Column]:
    """Build columns of text."""
    return [Column(label=label, note=note) for label in labels]


def numbers(*labels: str, format: Format = "", note: str = "") -> list[Column]:
    """Build columns of numbers."""
    return [Column(label=label, note=note, numeric=True, format=format) for label in labels]


def counts(*labels: str, note: str = "") -> list[Column]:
    """Build columns of whole numbers."""
    return numbers(*labels, format="count", note=note)


def shares(*labels: str, note: str = "") -> list[Column]:
    """Build columns of shares."""
    return numbers(*labels, format="percent", note=note)


def percent(share: float) -> str:
    """Format a share."""
    return f"{share:.1%}"


def written(cell: Cell | LinkedCell, format: Format) -> str:
    """Format a cell as text."""
    if isinstance(cell, LinkedCell):
        return cell.text
    if cell is None or isinstance(cell, str | bool):
        return "-" if cell is None else str(cell)
    known = {"metric": ".4f", "count": ",.0f", "percent": ".1%", "signed": "+.4f"}
    return f"{cell:{known.get(format, ',.6g')}}"


def figure(
    draw: Callable[..., Spec],
    key: str,
    title: str,
    note: str,
    columns: Sequence[Column],
    rows: Sequence[Row],
    fields: str,
    *,
    colors: Mapping[str, str] | None = None,
    shown: Callable[[Row], bool] | None = None,
    origins: Sequence[Origin] = (),
    **settings: Any,
) -> Chart:
    """Draw the rows of a table.

    Args:
        draw: One of the functions below.
        fields: Field of the drawing that each column is, in their order; ``-`` for none.
        colors: Colour by series, in their order; those of models by default.
        shown: Which rows are drawn; all by default.
        settings: For ``draw``.
    """
    names = fields.split()
    marks = []
    for row in rows if shown is None else filter(shown, rows):
        lines = [
            f"{column.label}: {written(cell, column.format)}" if column.label else str(cell)
            for column, cell in zip(columns, row, strict=True)
        ]
        drawn = {name: cell for name, cell in zip(names, row, strict=True) if name != "-"}
        marks.append({"series": "", **drawn, "note": "\n".join(lines)})
    if colors is None:
        series = list(dict.fromkeys(str(mark["series"]) for mark in marks))
        colors = colors_of(series, first=0 if len(series) > 1 else 2)
    return Chart(
        key=key,
        title=title,
        note=note,
        spec=draw(marks, colors, **settings),
        legend=colors if len(colors) > 1 else {},
        columns=columns,
        rows=rows,
        origins=origins,
    )


def build_spec(layers: Sequence[Spec], encoding: Spec, rows: Sequence[Mark], height: Any) -> Spec:
    """Build a chart as wide as its container from layers over the same rows."""
    return {
        "data": {"values": list(rows)},
        "encoding": encoding,
        "layer": list(layers),
        "width": "container",
        "height": height,
        "config": CONFIG,
    }


def _layer(mark: str, encoding: Spec | None = None, *, when: str = "", **style: Any) -> Spec:
    layer: Spec = {"mark": {"type": mark, **style}, "encoding": encoding or {}}
    return {**layer, "transform": [{"filter": when}]} if when else layer


def _dots(encoding: Spec, size: int, **style: Any) -> Spec:
    """Filled points with a tooltip."""
    encoding = {**encoding, "tooltip": _field("note", "nominal")}
    return _layer("point", encoding, **{"filled": True, "opacity": 1, **style, "size": size})


def _field(name: str, kind: str = "quantitative", **settings: Any) -> Spec:
    return {"field": name, "type": kind, **settings}


def _series(colors: Mapping[str, str]) -> Spec:
    scale = {"domain": list(colors), "range": list(colors.values())}
    return _field("series", "nominal", scale=scale, legend=None)


def _labels(labels: Sequence[str], **scale: Any) -> Spec:
    return _field("label", "nominal", title=None, scale={"domain": list(labels), **scale})


def _names(rows: Sequence[Mark], labels: Sequence[str] | None = None) -> list[str]:
    return list(dict.fromkeys(row["label"] for row in rows) if labels is None else labels)


def _amount(name: str, title: str | None, *, zero: bool, format: str = "") -> Spec:
    axis = {"tickCount": 5, "titlePadding": 8, **({"format": format} if format else {})}
    return _field(name, title=title, scale={"zero": zero, "nice": True}, axis=axis)


def _time(name: str, title: str = "time (UTC)") -> Spec:
    axis = {"grid": False, "labelOverlap": True, "format": TIME_FORMAT}
    return _field(name, "temporal", title=title, scale={"type": "utc"}, axis=axis)


def interval_chart(
    rows: Sequence[Mark],
    colors: Mapping[str, str],
    *,
    x_title: str,
    labels: Sequence[str] | None = None,
    rule_at: float | None = None,
) -> Spec:
    """Draw ``mean`` with its interval ``low`` to ``high`` for each ``series`` of each ``label``.

    Args:
        labels: Rows from top to bottom; one without marks stays empty.
        rule_at: Where to draw a reference line, such as 0 for differences.
    """
    several = len(colors) > 1
    encoding = {
        "y": _labels(_names(rows, labels), paddingInner=0.25),
        "color": _series(colors),
        "tooltip": _field("note", "nominal"),
    }
    if several:
        encoding["yOffset"] = _field("series", "nominal", scale={"domain": list(colors)})
    x: Spec = {"title": x_title, "scale": {"zero": True, "nice": True}}
    ends = {"x": _field("low", **x), "x2": {"field": "high"}}
    layers = [
        _layer("rule", ends, strokeWidth=2.5, opacity=0.55),
        _dots({"x": _field("mean", **x)}, 70),
    ]
    if rule_at is not None:
        own = dict.fromkeys(("y", "yOffset", "color", "tooltip"))
        line = _layer("rule", {**own, "x": {"datum": rule_at}}, color=QUIET, strokeDash=[4, 3])
        layers.insert(0, {**line, "data": {"values": [{}]}})
    step = {"step": LOW_ROW, "for": "offset"} if several else {"step": 2 * LOW_ROW}
    return build_spec(layers, encoding, rows, step)


def line_chart(
    rows: Sequence[Mark],
    colors: Mapping[str, str],
    *,
    x_title: str = "time (UTC)",
    y_title: str,
    time: bool = False,
    y_format: str = "",
    from_zero: bool = False,
) -> Spec:
    """Draw a line through ``y`` over ``x`` for each ``series``.

    Optional fields: ``low`` and ``high``, a band; ``ring``, whether to ring the point; ``stretch``,
    points of different ones are not joined.

    Args:
        time: Whether ``x`` is a moment (ISO 8601).
        y_format: Such as ".0%".
    """
    fields = {name for row in rows for name in row}
    scale = {"nice": False, "zero": False}
    linear = _field("x", title=x_title, scale=scale, axis={"grid": False})
    x = _time("x", x_title) if time else linear
    y = _amount("y", y_title, zero=from_zero, format=y_format)
    layers = []
    if "high" in fields:
        band = {"y": {**y, "field": "low"}, "y2": {"field": "high"}}
        layers.append(_layer("area", band, when="isValid(datum.high)", opacity=0.15))
    detail = {"detail": _field("stretch", "nominal")} if "stretch" in fields else {}
    layers.append(_layer("line", {"y": y, **detail}, strokeWidth=2))
    layers.append(_dots({"y": y}, 30))
    if "ring" in fields:
        ring = _dots({"y": y, "color": {"value": INK}}, 200, filled=False, strokeWidth=2)
        layers.append({**ring, "transform": [{"filter": "datum.ring"}]})
    return build_spec(layers, {"x": x, "color": _series(colors)}, rows, LINES_HEIGHT)


def share_chart(rows: Sequence[Mark], colors: Mapping[str, str], *, x_title: str) -> Spec:
    """Draw a bar of parts ``share`` by ``series`` for each ``label``; the parts sum to 1."""
    encoding = {
        "y": _labels(_names(rows)),
        "x": _field("share", title=x_title, **SHARES),
        "color": _series(colors),
        "order": _field("order"),
        "tooltip": _field("note", "nominal"),
    }
    order = {series: place for place, series in enumerate(colors)}
    parts = [{**one, "order": order[one["series"]]} for one in rows]
    return build_spec([_layer("bar", height={"band": 0.72})], encoding, parts, {"step": ROW})
