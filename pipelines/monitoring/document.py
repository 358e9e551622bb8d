"""The latest day in words and numbers, with the age of each input, for people and recsys update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any

from pipelines.config.operation import MIN_PAST
from pipelines.config.run import RunConfig
from pipelines.engine.artifacts import MANIFEST
from pipelines.engine.workspace import bundles_dir
from pipelines.monitoring.judged import SignalDay, SignalRecord
from pipelines.monitoring.signals import Signal, find_signal
from pipelines.partitions.manifest import PartitionsManifest
from serving.bundle.manifest import CURRENT

MIN_GAPS = 3
MIN_DAYS = 14
GAP_DAYS = 90
RECENT_PARTITION_DAYS = 7
"""Days for which a missing or unusable partition raises an alarm."""
SLACK = 1.5
KEPT_TIMES = 50
TITLES = {
    "events": "events, by day",
    "partitions": "partitions of the last days",
    "served": "served lists, by day",
    "catalogue": "catalogue file",
    "content": "content vectors",
    "bundle": "served bundle",
}


@dataclass(frozen=True, kw_only=True)
class Freshness:
    """The age of one input."""

    name: str
    title: str
    newest: str | None
    """Day or time of the newest; None where it was never seen."""
    age_days: float | None
    limit_days: float | None
    """Older is an alarm; None where too little past teaches none."""
    alarm: bool
    words: str


def judge_inputs(
    config: RunConfig,
    as_of: datetime,
    event_days: Sequence[date],
    served_days: Sequence[date],
    times: Mapping[str, Sequence[datetime]],
) -> list[Freshness]:
    """Judge every input."""
    found = [of_days("events", event_days, as_of, config)]
    if (manifest := PartitionsManifest.read(config.workspace)) is not None:
        found.append(of_partitions(manifest, as_of))
    if served_days:
        found.append(of_days("served", served_days, as_of, config))
    return found + [of_times(name, seen, as_of, config) for name, seen in times.items() if seen]


def of_days(name: str, known: Sequence[date], as_of: datetime, config: RunConfig) -> Freshness:
    """Judge an input that comes by day: it is late where no gap of the past was as long."""
    last_end = datetime.combine(known[-1] + timedelta(days=1), time(), UTC)
    age = (as_of - last_end).total_seconds() / 86_400
    recent = [day for day in known if (known[-1] - day).days <= GAP_DAYS]
    gaps = [(after - before).days for before, after in pairwise(recent)]
    # Up to the end of the next day a day is not late.
    limit = max(gaps) - 0.001 if len(recent) >= MIN_DAYS else None
    found = judged(name, str(known[-1]), max(0.0, age), limit, config)
    if not found.alarm or name in config.monitoring.max_age_days:
        return found
    words = f"late: {int(age)} days without, at most {max(gaps) - 1} in the last {GAP_DAYS} days"
    return replace(found, words=words)


def of_partitions(manifest: PartitionsManifest, as_of: datetime) -> Freshness:
    """Judge what did not arrive as it should: partitions that are missing or set aside."""
    since = f"{as_of - timedelta(days=RECENT_PARTITION_DAYS):%Y-%m-%d}"
    aside = [f"{key} ({one.reason})" for key, one in manifest.set_aside.items() if key >= since]
    missing = [key for key in manifest.missing if key >= since]
    words = [f"set aside: {', '.join(aside)}"] if aside else []
    words += [f"never came: {', '.join(missing)}"] if missing else []
    return Freshness(
        name="partitions",
        title=TITLES["partitions"],
        newest=manifest.newest,
        age_days=None,
        limit_days=None,
        alarm=bool(words),
        words="; ".join(words) or "all came and can be used",
    )


def of_times(name: str, seen: Sequence[datetime], as_of: datetime, config: RunConfig) -> Freshness:
    """Judge an input that is replaced at times: half as long again as the longest gap is late."""
    age = max(0.0, (as_of - seen[-1]).total_seconds() / 86_400)
    gaps = [(after - before).total_seconds() / 86_400 for before, after in pairwise(seen)]
    limit = SLACK * max(gaps) if len(gaps) >= MIN_GAPS else None
    return judged(name, f"{seen[-1]:%Y-%m-%d %H:%M}", age, limit, config)


def judged(
    name: str, newest: str, age: float, learned: float | None, config: RunConfig
) -> Freshness:
    """Compare an age with the limit that is set, else with the learned one."""
    limit = config.monitoring.max_age_days.get(name, learned)
    alarm = limit is not None and age > limit
    if limit is None:
        words = "too few arrivals to learn the usual interval"
    elif alarm:
        words = f"late: {age:.1f} days old, usual is up to {limit:.1f}"
    else:
        words = "in time"
    return Freshness(
        name=name,
        title=TITLES[name],
        newest=newest,
        age_days=round(age, 3),
        limit_days=None if limit is None else round(limit, 3),
        alarm=alarm,
        words=words,
    )


def seen_times(
    config: RunConfig, before: Mapping[str, Sequence[str]], as_of: datetime
) -> dict[str, list[datetime]]:
    """Add the inputs' times of now to those that were seen before, each once."""
    content = config.workspace / "embed_items" / MANIFEST
    files = {
        "catalogue": config.data.items,
        "content": content,
        "bundle": bundles_dir(config) / CURRENT / MANIFEST,
    }
    found: dict[str, list[datetime]] = {}
    for name, path in files.items():
        times = {datetime.fromisoformat(one) for one in before.get(name, ())}
        if path is not None and path.exists():
            times.add(datetime.fromtimestamp(int(Path(path).stat().st_mtime), UTC))
        found[name] = sorted(times)[-KEPT_TIMES:]
    return found


FORMAT = 1
RECENT_DAYS = 30


def describe_day(
    record: SignalRecord,
    inputs: Sequence[Freshness],
    *,
    as_of: datetime,
    known_until: date | None,
    config: RunConfig,
) -> dict[str, Any]:
    """Describe the latest day."""
    day = record.date_of(len(record.days) - 1)
    latest = record.days[-1]
    recent = dict.fromkeys([*latest, *(name for one in record.days[-RECENT_DAYS:] for name in one)])
    signals = [
        signal_document(find_signal(name), latest.get(name), day, MIN_PAST) for name in recent
    ]
    raised = [one for one in signals if one["alarm"]]
    late = [one for one in inputs if one.alarm]
    retrain, reason = decide_retrain(raised, known_until)
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
        "words": summarize_day(day, signals, inputs, (retrain, reason), MIN_PAST),
        "signals": signals,
        "freshness": [asdict(one) for one in inputs],
        "recent_alarms": recent_alarms(record),
    }


def signal_document(
    signal: Signal, one: SignalDay | None, day: date, min_past: int
) -> dict[str, Any]:
    """Describe one signal's day; None if it was not measured on that day."""
    found = {name: getattr(signal, name) for name in ("name", "title", "group", "drift")}
    numbers = dict.fromkeys(("value", "expected", "low", "high"), None) | {"num_past": 0}
    state, since = "not measured", None
    words = "not measured: too few events or lists on the day"
    if one is not None:
        numbers = {name: finite(getattr(one, name)) for name in numbers}
        numbers |= {"num_past": one.num_past}
        state = "alarm" if one.streak else "learning" if one.num_past < min_past else "quiet"
        since = str(day - timedelta(days=one.streak - 1)) if one.streak else None
        words = signal_words(signal, one, since, min_past)
    is_alarm = state == "alarm"
    return {**found, **numbers, "state": state, "alarm": is_alarm, "since": since, "words": words}


def signal_words(signal: Signal, one: SignalDay, since: str | None, min_past: int) -> str:
    """Compare a value with its band in words."""
    value = written(signal, one.value)
    if one.num_past < min_past:
        return f"{value}; too little past to judge ({one.num_past} of {min_past} days)"
    low = "" if not isfinite(one.low) else f"{written(signal, one.low)} to "
    usual = f"{low or 'up to '}{written(signal, one.high)}"
    return f"{value}, usual is {usual}" + (f"; alarm since {since}" if since else "")


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


def decide_retrain(raised: Sequence[dict[str, Any]], known_until: date | None) -> tuple[bool, str]:
    """Decide whether a full retrain may help, and why.

    It helps against drift, until a full run was trained on the days of the alarm.
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


def summarize_day(
    day: date,
    signals: Sequence[dict[str, Any]],
    inputs: Sequence[Freshness],
    retrain: tuple[bool, str],
    min_past: int,
) -> list[str]:
    """Describe the day in sentences, most important first."""
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


def recent_alarms(record: SignalRecord) -> list[dict[str, Any]]:
    """List the alarms of the last days, newest first."""
    found = []
    for place in range(len(record.days) - 1, max(-1, len(record.days) - 1 - RECENT_DAYS), -1):
        names = [name for name, one in record.days[place].items() if one.streak]
        if names:
            titles = [find_signal(name).title for name in names]
            day = str(record.date_of(place))
            found.append({"day": day, "signals": names, "titles": titles})
    return found
