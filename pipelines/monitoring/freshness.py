"""How old each input is, and whether that is older than it has usually been."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from pathlib import Path

from pipelines.config.run import RunConfig
from pipelines.engine.artifacts import MANIFEST
from pipelines.engine.workspace import bundles_dir
from pipelines.partitions.manifest import PartitionsManifest
from serving.bundle.manifest import CURRENT

MIN_GAPS = 3
MIN_DAYS = 14
RECENT_DAYS = 90
RECENT_PARTITION_DAYS = 7
"""Partitions that did not come or cannot be used are an alarm for so many days."""
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


def freshness_of(
    config: RunConfig,
    as_of: datetime,
    event_days: Sequence[date],
    served_days: Sequence[date],
    times: Mapping[str, Sequence[datetime]],
) -> list[Freshness]:
    """Judge every input.

    Args:
        event_days: Days with events, in order.
        served_days: Days with served lists, in order; none where nothing is exported.
        times: When each of the other inputs was seen to change, in order.
    """
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
    recent = [day for day in known if (known[-1] - day).days <= RECENT_DAYS]
    gaps = [(after - before).days for before, after in pairwise(recent)]
    # Up to the end of the next day a day is not late.
    limit = max(gaps) - 0.001 if len(recent) >= MIN_DAYS else None
    found = judged(name, str(known[-1]), max(0.0, age), limit, config)
    if not found.alarm or name in config.monitoring.max_age_days:
        return found
    words = f"late: {int(age)} days without, at most {max(gaps) - 1} in the last {RECENT_DAYS} days"
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
        words = "too few arrivals to learn what is usual"
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
    """Add the inputs' times of now to those that were seen before, each once.

    Args:
        before: ISO times by input.
    """
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
