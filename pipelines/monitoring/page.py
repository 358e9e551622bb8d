"""The page of monitoring: inputs, signals, and each signal over days with its band."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import polars as pl

from pipelines.monitoring.signals import SIGNALS
from pipelines.pages.charts import figure, line_chart, numbers, texts
from pipelines.pages.document import Cell, Chart, Page, Section, Table, Words

SHOWN_DAYS = 180
BAND_ROOM = 0.6
"""Reach of a drawn band beyond the values, in their range."""
PERCENT, NUMBER = ".0%", ",~f"
INPUT = ("newest", "age_days", "limit_days", "words")
SIGNAL = ("value", "low", "high", "words")
STATES = ("alarm", "learning", "quiet", "not measured")
METHOD = (
    "Each signal is expected at the level of its last two weeks plus the usual deviation of the "
    "weekday. The band is learned from what earlier days deviated from their own expectation, its "
    "width chosen so that all signals together raise few false alarms a month. Mixes are compared "
    "by the Jensen-Shannon distance with the days of the reference window. Days of alarm do not "
    "widen the band; after a week in a row the new level counts as usual. A ringed day raised an "
    "alarm."
)


def monitoring_page(document: Mapping[str, Any], rows: pl.DataFrame) -> Page:
    """Build the page: tables of the latest day, and a chart for each signal, alarms first.

    Args:
        document: What ``monitor.json`` holds.
        rows: What ``days.parquet`` holds.
    """
    first, *words = document["words"]
    signals = sorted(document["signals"], key=lambda one: STATES.index(one["state"]))
    inputs = Table(
        key="freshness",
        title="Freshness of inputs",
        note="The limit is learned from the past or set in the configuration.",
        columns=[
            *texts("input", "state", "newest"),
            *numbers("age in days", "limit in days"),
            *texts("what it says"),
        ],
        rows=[
            (one["title"], "ALARM" if one["alarm"] else "quiet", *map(one.get, INPUT))
            for one in document["freshness"]
        ],
    )
    latest = Table(
        key="signals",
        title=f"Signals of {document['day']}",
        note="Each is compared with the band learned from the days before it.",
        columns=[
            *texts("signal", "state"),
            *numbers("value", "usual from", "usual to", format="metric"),
            *texts("what it says"),
        ],
        rows=[
            (one["title"], "ALARM" if one["alarm"] else one["state"], *map(one.get, SIGNAL))
            for one in signals
        ],
    )
    charts = [signal_chart(one, rows.filter(pl.col("signal") == one["name"])) for one in signals]
    return Page(
        title=f"Monitoring: {document['day']}",
        lead=first,
        blocks=[
            *([Words(lines=words, tone="bad" if document["alarm"] else "good")] if words else []),
            inputs,
            latest,
            Section(key="days", title="Signals by day", blocks=charts),
            Section(key="method", title="Method", blocks=[Words(lines=[METHOD])]),
        ],
    )


def signal_chart(signal: Mapping[str, Any], rows: pl.DataFrame) -> Chart:
    """Draw one signal; bands that reach far beyond its values are cut, so that these show."""
    days = rows.sort("date").tail(SHOWN_DAYS).to_dicts()
    values = [day["value"] for day in days]
    least, most = min(values), max(values)
    room = BAND_ROOM * (most - least or abs(most) or 1.0)
    table: list[tuple[Cell, ...]] = []
    for day in days:
        low = high = None
        if math.isfinite(day["high"]):
            low = day["low"] if math.isfinite(day["low"]) else 0.0
            low, high = (min(max(end, least - room), most + room) for end in (low, day["high"]))
        table.append((str(day["date"]), day["value"], low, high, day["streak"] > 0))
    is_share = SIGNALS[signal["name"]].kind == "share"
    return figure(
        line_chart,
        signal["name"],
        signal["title"],
        signal["words"],
        [*texts("day"), *numbers(signal["title"], "usual from", "usual to"), *texts("alarm")],
        table,
        "x y low high ring",
        x_title="day (UTC)",
        y_title=signal["title"],
        y_format=PERCENT if is_share else NUMBER,
        time=True,
    )
