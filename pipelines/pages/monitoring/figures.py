"""The figures of the page of monitoring: each signal as a line over days with its band."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from pipelines.pages.charts.shapes import WatchedDay, watched_chart
from pipelines.pages.figure import Figure

SHOWN_DAYS = 180
BAND_ROOM = 0.6
"""How far a band is drawn beyond the values, in their range."""
GROUPS = {
    "volume": "Volume",
    "events": "Events and users",
    "items": "Items",
    "vectors": "Vectors and semantic IDs",
    "features": "Features",
    "online": "Served lists",
}
PERCENT, NUMBER = ".0%", ",~f"


def figures_of(document: Mapping[str, Any], rows: pl.DataFrame) -> dict[str, list[Figure]]:
    """Draw the signals by group, those with an alarm first.

    Args:
        document: What ``monitor.json`` holds.
        rows: What ``days.parquet`` holds.
    """
    found: dict[str, list[Figure]] = {}
    for group in GROUPS:
        own = [one for one in document["signals"] if one["group"] == group]
        own.sort(key=lambda one: not one["alarm"])
        figures = [signal_figure(one, rows.filter(pl.col("signal") == one["name"])) for one in own]
        if figures:
            found[group] = figures
    return found


def signal_figure(signal: Mapping[str, Any], rows: pl.DataFrame) -> Figure:
    """Draw one signal."""
    rows = rows.sort("date").tail(SHOWN_DAYS)
    days = [watched_day(row) for row in rows.to_dicts()]
    is_share = signal["name"].endswith(("_share", "_rate")) or signal["name"].startswith("new_")
    alarms = [day.day for day in days if day.alarm]
    return Figure(
        key=signal["name"].replace(".", "-"),
        title=signal["title"],
        note=signal["words"],
        description=f"{signal['title']} by day; alarms on "
        f"{', '.join(alarms) if alarms else 'no day'}.",
        spec=watched_chart(
            clipped(days), y_title=signal["title"], y_format=PERCENT if is_share else NUMBER
        ),
        legend={},
        columns=("day", signal["title"], "usual from", "usual to", "alarm"),
        rows=table_rows(days),
    )


def clipped(days: Sequence[WatchedDay]) -> list[WatchedDay]:
    """Cut bands that reach far beyond all values, so that the line stays readable."""
    values = [day.value for day in days]
    least, most = min(values), max(values)
    room = BAND_ROOM * (most - least or abs(most) or 1.0)
    return [
        day
        if day.low is None or day.high is None
        else replace(
            day,
            low=min(max(day.low, least - room), most + room),
            high=max(min(day.high, most + room), least - room),
        )
        for day in days
    ]


def watched_day(row: Mapping[str, Any]) -> WatchedDay:
    """Lay a day out; the open low end of a band is 0."""
    value, low, high = row["value"], row["low"], row["high"]
    known = abs(high) != float("inf")
    bounded = None if not known else low if abs(low) != float("inf") else 0.0
    note = f"{row['date']}: {value:.4g}"
    if bounded is not None:
        note += f", usual {bounded:.4g} to {high:.4g}"
    return WatchedDay(
        day=str(row["date"]),
        value=value,
        low=bounded,
        high=high if known else None,
        alarm=row["streak"] > 0,
        note=note + (" (alarm)" if row["streak"] else ""),
    )


def table_rows(days: Sequence[WatchedDay]) -> list[tuple[str, ...]]:
    """Write the days as a table, newest first."""
    return [
        (
            day.day,
            f"{day.value:.4g}",
            "" if day.low is None else f"{day.low:.4g}",
            "" if day.high is None else f"{day.high:.4g}",
            "yes" if day.alarm else "",
        )
        for day in reversed(days)
    ]
