"""The latest day in words and numbers, with the age of each input, for people and recsys update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

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


class Freshness(NamedTuple):
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
    longest = max(((after - before).days for before, after in pairwise(recent)), default=0)
    # Up to the end of the next day a day is not late.
    limit = longest - 0.001 if len(recent) >= MIN_DAYS else None
    late = f"late: {int(age)} days without, at most {longest - 1} in the last {GAP_DAYS} days"
    return judge_age(name, str(known[-1]), max(0.0, age), limit, config, late)


def of_partitions(manifest: PartitionsManifest, as_of: datetime) -> Freshness:
    """Judge what did not arrive as it should: partitions that are missing or set aside."""
    since = f"{as_of - timedelta(days=RECENT_PARTITION_DAYS):%Y-%m-%d}"
    aside = [f"{key} ({one.reason})" for key, one in manifest.set_aside.items() if key >= since]
    missing = [key for key in manifest.missing if key >= since]
    words = [f"set aside: {', '.join(aside)}"] if aside else []
    words += [f"never came: {', '.join(missing)}"] if missing else []
    text = "; ".join(words) or "all came and can be used"
    title = TITLES["partitions"]
    return Freshness("partitions", title, manifest.newest, None, None, bool(words), text)


def of_times(name: str, seen: Sequence[datetime], as_of: datetime, config: RunConfig) -> Freshness:
    """Judge an input that is replaced at times: half as long again as the longest gap is late."""
    age = max(0.0, (as_of - seen[-1]).total_seconds() / 86_400)
    gaps = [(after - before).total_seconds() / 86_400 for before, after in pairwise(seen)]
    limit = SLACK * max(gaps) if len(gaps) >= MIN_GAPS else None
    return judge_age(name, f"{seen[-1]:%Y-%m-%d %H:%M}", age, limit, config)


def judge_age(
    name: str, newest: str, age: float, learned: float | None, config: RunConfig, late: str = ""
) -> Freshness:
    """Compare an age with the limit that is set, else with the learned one.

    Args:
        late: Words of an input that is older than the learned limit.
    """
    limit = config.monitoring.max_age_days.get(name, learned)
    alarm = limit is not None and age > limit
    words = "in time" if limit is not None else "too few arrivals to learn the usual interval"
    if limit is not None and alarm:
        is_set = not late or name in config.monitoring.max_age_days
        words = f"late: {age:.1f} days old, usual is up to {limit:.1f}" if is_set else late
    rounded = None if limit is None else round(limit, 3)
    return Freshness(name, TITLES[name], newest, round(age, 3), rounded, alarm, words)


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
    as_of: datetime,
    known_until: date | None,
) -> dict[str, Any]:
    """Describe the latest day."""
    day = record.date_of(len(record.days) - 1)
    latest = record.days[-1]
    recent = dict.fromkeys([*latest, *(name for one in record.days[-RECENT_DAYS:] for name in one)])
    signals = [describe_signal(find_signal(name), latest.get(name), day) for name in recent]
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
        "words": summarize_day(
            day, signals, inputs, f"{'Retrain' if retrain else 'No retrain'}: {reason}."
        ),
        "signals": signals,
        "freshness": [one._asdict() for one in inputs],
        "recent_alarms": recent_alarms(record),
    }


def describe_signal(signal: Signal, one: SignalDay | None, day: date) -> dict[str, Any]:
    """Describe one signal's day in numbers and words; None if it was not measured on that day."""
    found: dict[str, Any] = {
        **{name: getattr(signal, name) for name in ("name", "title", "group", "drift")},
        **dict.fromkeys(("value", "expected", "low", "high")),
        "num_past": 0,
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
    for name in ("value", "expected", "low", "high"):
        number = getattr(one, name)
        # JSON has no number for the open end of a band.
        found[name] = float(number) if isfinite(number) else None
    found |= {"num_past": one.num_past, "state": state, "alarm": state == "alarm"}
    return found | {"since": since, "words": words}


def written(signal: Signal, value: float) -> str:
    """Write a value as its kind is read."""
    if signal.kind == "count":
        return f"{value:,.0f}"
    if signal.kind == "share":
        return f"{value:.1%}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"


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
    if known_until is None or any(str(one["since"]) > str(known_until) for one in drifted):
        return True, names
    return False, f"the last full run was trained on days up to {known_until}: {names}"


def counted(number: int, name: str) -> str:
    """Write a number with its noun."""
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


def summarize_day(
    day: date, signals: Sequence[dict[str, Any]], inputs: Sequence[Freshness], retrain: str
) -> list[str]:
    """Describe the day in sentences, most important first."""
    late = [one for one in inputs if one.alarm]
    raised = [one for one in signals if one["alarm"]]
    learning = sum(one["state"] == "learning" for one in signals)
    if raised or late:
        kinds = {"signal": len(raised), "input": len(late)}
        alarms = [counted(number, name) for name, number in kinds.items() if number]
        found = [f"{day}: alarm of {' and '.join(alarms)}."]
    else:
        watched = f"{counted(len(signals), 'signal')} and {counted(len(inputs), 'input')}"
        found = [f"{day}: quiet; watched are {watched}."]
    found += [f"{one.title}: {one.words}." for one in late]
    found += [f"{one['title']}: {one['words']}." for one in raised]
    if learning:
        found.append(
            f"Too little past for {counted(learning, 'signal')}: each needs "
            f"{MIN_PAST} days that were compared with the days before them."
        )
    return [*found, retrain] if raised else found


def recent_alarms(record: SignalRecord) -> list[dict[str, Any]]:
    """List the alarms of the last days, newest first."""
    found = []
    for place in reversed(range(len(record.days))[-RECENT_DAYS:]):
        if names := [name for name, one in record.days[place].items() if one.streak]:
            titles = [find_signal(name).title for name in names]
            found.append({"day": str(record.date_of(place)), "signals": names, "titles": titles})
    return found
