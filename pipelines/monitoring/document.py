"""The latest day in words and numbers, for people and recsys update, and the page of all days."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from math import isfinite
from typing import Any, NamedTuple

import polars as pl

from pipelines.config.operation import MIN_PAST
from pipelines.config.run import RunConfig
from pipelines.engine.artifacts import MANIFEST
from pipelines.engine.workspace import SCHEMA, bundles_dir
from pipelines.monitoring.signals import SIGNALS, Signal, SignalDay, SignalRecord
from pipelines.pages.charts import figure, line_chart, numbers, texts
from pipelines.pages.document import Cell, Chart, Page, Section, Table, Words
from serving.bundle.manifest import CURRENT

MIN_DAYS = 14
GAP_DAYS = 90
RECENT_DAYS = 30


class Freshness(NamedTuple):
    """The age of one input."""

    name: str
    title: str
    newest: str | None
    """Day or time of the newest; None without one."""
    age_days: float | None
    limit_days: float | None
    """Older is an alarm; None without a limit."""
    alarm: bool
    words: str


def judge_inputs(
    config: RunConfig, as_of: datetime, event_days: Sequence[date], served_days: Sequence[date]
) -> list[Freshness]:
    """Judge every input."""
    found = [judge_days("events", event_days, as_of, config)]
    if served_days:
        found.append(judge_days("served", served_days, as_of, config))
    files = {
        "catalogue": ("catalogue file", config.data.items),
        "content": ("content vectors", config.workspace / "embed_items" / MANIFEST),
        "bundle": ("served bundle", bundles_dir(config) / CURRENT / MANIFEST),
    }
    for name, (title, path) in files.items():
        if path is not None and not isinstance(path, str) and path.exists():
            written = datetime.fromtimestamp(int(path.stat().st_mtime), UTC)
            age = max(0.0, (as_of - written) / timedelta(days=1))
            limit = config.monitoring.max_age_days.get(name)
            found.append(judge_age(name, title, f"{written:%Y-%m-%d %H:%M}", age, limit))
    return found


def judge_days(name: str, known: Sequence[date], as_of: datetime, config: RunConfig) -> Freshness:
    """Judge an input that comes by day: it is late if no gap of the past was as long."""
    last_end = datetime.combine(known[-1] + timedelta(days=1), time(), UTC)
    age = max(0.0, (as_of - last_end) / timedelta(days=1))
    recent = [day for day in known if (known[-1] - day).days <= GAP_DAYS]
    longest = max(((after - before).days for before, after in pairwise(recent)), default=0)
    # Up to the end of the next day a day is not late.
    learned = longest - 0.001 if len(recent) >= MIN_DAYS else None
    limit = config.monitoring.max_age_days.get(name, learned)
    title = {"events": "events, by day", "served": "served lists, by day"}[name]
    return judge_age(name, title, str(known[-1]), age, limit)


def judge_age(name: str, title: str, newest: str, age: float, limit: float | None) -> Freshness:
    """Compare an age with its limit."""
    alarm = limit is not None and age > limit
    words = "in time" if limit is not None else f"no limit: set monitoring.max_age_days.{name}"
    if limit is not None and alarm:
        words = f"late: {age:.1f} days old, usual is up to {limit:.1f}"
    rounded = None if limit is None else round(limit, 3)
    return Freshness(name, title, newest, round(age, 3), rounded, alarm, words)


def describe_day(
    record: SignalRecord, inputs: Sequence[Freshness], as_of: datetime
) -> dict[str, Any]:
    """Describe the latest day."""
    day = record.date_of(len(record.days) - 1)
    latest = record.days[-1]
    recent = dict.fromkeys([*latest, *(name for one in record.days[-RECENT_DAYS:] for name in one)])
    signals = [describe_signal(SIGNALS[name], latest.get(name), day) for name in recent]
    raised = [one for one in signals if one["alarm"]]
    late = [one for one in inputs if one.alarm]
    retrain, reason = decide_retrain(raised)
    return {
        "format": SCHEMA,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "as_of": as_of.isoformat(timespec="seconds"),
        "day": str(day),
        "alarm": bool(raised or late),
        "alarms": [one["name"] for one in raised] + [f"freshness.{one.name}" for one in late],
        "retrain": retrain,
        "retrain_since": max((str(one["since"]) for one in raised if one["drift"]), default=None),
        "reason": reason,
        "words": summarize_day(
            day, signals, inputs, f"{'Retrain' if retrain else 'No retrain'}: {reason}."
        ),
        "signals": signals,
        "freshness": [one._asdict() for one in inputs],
    }


def describe_signal(signal: Signal, one: SignalDay | None, day: date) -> dict[str, Any]:
    """Describe one signal's day in numbers and words; None if it was not measured on that day."""
    found: dict[str, Any] = {
        **{name: getattr(signal, name) for name in ("name", "title", "group", "drift")},
        **dict.fromkeys(("value", "low", "high")),
        "state": "not measured",
        "alarm": False,
        "since": None,
        "words": "not measured: too few events or lists on the day",
    }
    if one is None:
        return found
    value, low, high = (written(signal, part) for part in (one.value, one.low, one.high))
    if one.num_past < MIN_PAST:
        state, since = "learning", None
        words = f"{value}; too little past to judge ({one.num_past} of {MIN_PAST} days)"
    else:
        since = str(day - timedelta(days=one.streak - 1)) if one.streak else None
        state = "alarm" if since else "quiet"
        usual = f"{low} to {high}" if isfinite(one.low) else f"up to {high}"
        words = f"{value}, usual is {usual}" + (f"; alarm since {since}" if since else "")
    for name in ("value", "low", "high"):
        number = getattr(one, name)
        # JSON has no number for the open end of a band.
        found[name] = float(number) if isfinite(number) else None
    return found | {"state": state, "alarm": state == "alarm", "since": since, "words": words}


def written(signal: Signal, value: float) -> str:
    """Write a value as its kind is read."""
    if signal.kind == "count":
        return f"{value:,.0f}"
    if signal.kind == "share":
        return f"{value:.1%}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"


def decide_retrain(raised: Sequence[dict[str, Any]]) -> tuple[bool, str]:
    """Decide whether a full retrain may help, and why: it helps against drift.

    recsys update asks for it until a full run has seen the day on which the alarm began.
    """
    drifted = sorted((one for one in raised if one["drift"]), key=lambda one: str(one["since"]))
    if not drifted:
        return False, "no drift that models could learn" if raised else "no drift"
    return True, "; ".join(f"since {one['since']} {one['title']}" for one in drifted)


def counted(number: int, name: str) -> str:
    """Write a number with its noun."""
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


def summarize_day(
    day: date, signals: Sequence[dict[str, Any]], inputs: Sequence[Freshness], retrain: str
) -> list[str]:
    """Describe the day in sentences, most important first."""
    late = [one for one in inputs if one.alarm]
    raised = [one for one in signals if one["alarm"]]
    if raised or late:
        kinds = {"signal": len(raised), "input": len(late)}
        alarms = [counted(number, name) for name, number in kinds.items() if number]
        found = [f"{day}: alarm of {' and '.join(alarms)}."]
    else:
        watched = f"{counted(len(signals), 'signal')} and {counted(len(inputs), 'input')}"
        found = [f"{day}: quiet; watched are {watched}."]
    found += [f"{one.title}: {one.words}." for one in late]
    found += [f"{one['title']}: {one['words']}." for one in raised]
    return [*found, retrain] if raised else found


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
