"""The latest day in words and numbers: what `recsys update` and people read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta
from math import isfinite
from typing import Any

from pipelines.config.daily import MIN_PAST
from pipelines.config.run import RunConfig
from pipelines.monitoring.freshness import Freshness
from pipelines.monitoring.judged import Judged, Record
from pipelines.monitoring.signals import Signal, signal_of

FORMAT = 1
RECENT_DAYS = 30


def document_of(
    record: Record,
    inputs: Sequence[Freshness],
    *,
    as_of: datetime,
    known_until: date | None,
    config: RunConfig,
) -> dict[str, Any]:
    """Describe the latest day.

    Args:
        known_until: Day of the newest event that the last full run was trained on.
    """
    day = record.date_of(len(record.days) - 1)
    signals = [
        signal_document(signal_of(name), one, day, MIN_PAST)
        for name, one in record.days[-1].items()
    ]
    signals += [missing_document(signal_of(name)) for name in missing_signals(record)]
    raised = [one for one in signals if one["alarm"]]
    late = [one for one in inputs if one.alarm]
    retrain, reason = retrain_of(raised, known_until)
    return {
        "format": FORMAT,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "as_of": as_of.isoformat(timespec="seconds"),
        "day": str(day),
        "num_days": len(record.days),
        "alarm": bool(raised or late),
        "alarms": [one["name"] for one in raised] + [f"freshness.{one.name}" for one in late],
        "retrain": retrain,
        "reason": reason,
        "words": words_of(day, signals, inputs, (retrain, reason), MIN_PAST),
        "signals": signals,
        "freshness": [asdict(one) for one in inputs],
        "recent_alarms": recent_alarms(record),
    }


def signal_document(signal: Signal, one: Judged, day: date, min_past: int) -> dict[str, Any]:
    """Describe one signal's day."""
    learning = one.num_past < min_past
    alarm = one.streak > 0
    since = str(day - timedelta(days=one.streak - 1)) if alarm else None
    return {
        "name": signal.name,
        "title": signal.title,
        "group": signal.group,
        "drift": signal.drift,
        "value": one.value,
        "expected": finite(one.expected),
        "low": finite(one.low),
        "high": finite(one.high),
        "state": "alarm" if alarm else "learning" if learning else "quiet",
        "alarm": alarm,
        "since": since,
        "num_past": one.num_past,
        "words": signal_words(signal, one, since, min_past),
    }


def missing_signals(record: Record) -> list[str]:
    """Name what was measured on one of the last days, but not on the latest."""
    recent = [name for day in record.days[-RECENT_DAYS:] for name in day]
    return [name for name in dict.fromkeys(recent) if name not in record.days[-1]]


def missing_document(signal: Signal) -> dict[str, Any]:
    """Describe a signal of which the day says nothing."""
    return {
        "name": signal.name,
        "title": signal.title,
        "group": signal.group,
        "drift": signal.drift,
        "value": None,
        "expected": None,
        "low": None,
        "high": None,
        "state": "not measured",
        "alarm": False,
        "since": None,
        "num_past": 0,
        "words": "not measured: too few events or lists on the day",
    }


def signal_words(signal: Signal, one: Judged, since: str | None, min_past: int) -> str:
    """Say how a value compares with its band."""
    value = written(signal, one.value)
    if one.num_past < min_past:
        return f"{value}; too little past to judge ({one.num_past} of {min_past} days)"
    usual = usual_words(signal, one.low, one.high)
    return f"{value}, usual is {usual}" + (f"; alarm since {since}" if since else "")


def usual_words(signal: Signal, low: float, high: float) -> str:
    """Write a band."""
    if not isfinite(low):
        return f"up to {written(signal, high)}"
    return f"{written(signal, low)} to {written(signal, high)}"


def written(signal: Signal, value: float) -> str:
    """Write a value as its kind is read."""
    if signal.kind == "count":
        return f"{value:,.0f}"
    if signal.kind == "share":
        return f"{value:.1%}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"


def finite(value: float) -> float | None:
    """Leave out what JSON has no number for."""
    return float(value) if isfinite(value) else None


def retrain_of(raised: Sequence[dict[str, Any]], known_until: date | None) -> tuple[bool, str]:
    """Say whether a full retrain may help, and why.

    A retrain helps against drift of what models learn from; not against too few events, late
    inputs or degraded serving. Once a full run was trained on the days of the alarm, models
    have learned what there is.
    """
    drifted = [one for one in raised if one["drift"]]
    if not drifted:
        return False, "no drift that models could learn" if raised else "no drift"
    by_day: dict[str, list[str]] = {}
    for one in sorted(drifted, key=lambda one: str(one["since"])):
        by_day.setdefault(one["since"], []).append(one["title"])
    names = "; ".join(f"since {since} {', '.join(titles)}" for since, titles in by_day.items())
    unlearned = [
        one
        for one in drifted
        if known_until is None or date.fromisoformat(one["since"]) > known_until
    ]
    if not unlearned:
        return False, f"the last full run was trained on days up to {known_until}: {names}"
    return True, names


def counted(number: int, name: str) -> str:
    """Write a number with its noun."""
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


def words_of(
    day: date,
    signals: Sequence[dict[str, Any]],
    inputs: Sequence[Freshness],
    retrain: tuple[bool, str],
    min_past: int,
) -> list[str]:
    """Say what is the matter, most important first."""
    late, num_inputs = [one for one in inputs if one.alarm], len(inputs)
    raised = [one for one in signals if one["alarm"]]
    learning = [one for one in signals if one["state"] == "learning"]
    if raised or late:
        kinds = {"signal": len(raised), "input": len(late)}
        alarms = [counted(number, name) for name, number in kinds.items() if number]
        found = [f"{day}: alarm of {' and '.join(alarms)}."]
    else:
        watched = f"{counted(len(signals), 'signal')} and {counted(num_inputs, 'input')}"
        found = [f"{day}: quiet; watched are {watched}."]
    found += [f"{one.title}: {one.words}." for one in late]
    found += [f"{one['title']}: {one['words']}." for one in raised]
    if learning:
        found.append(
            f"Too little past for {counted(len(learning), 'signal')}: each needs "
            f"{min_past} days that were compared with the days before them."
        )
    if raised:
        found.append(f"{'Retrain' if retrain[0] else 'No retrain'}: {retrain[1]}.")
    return found


def recent_alarms(record: Record) -> list[dict[str, Any]]:
    """List the alarms of the last days, newest first."""
    found = []
    for place in range(len(record.days) - 1, max(-1, len(record.days) - 1 - RECENT_DAYS), -1):
        names = [name for name, one in record.days[place].items() if one.streak]
        if names:
            titles = [signal_of(name).title for name in names]
            day = str(record.date_of(place))
            found.append({"day": day, "signals": names, "titles": titles})
    return found
