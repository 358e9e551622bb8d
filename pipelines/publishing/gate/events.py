"""The events that a challenger was made from: their clock, and whether they stand there once.

Axes: E events.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pipelines.publishing.gate.subject import Subject, at_most
from serving.bundle.load import Bundle
from serving.bundle.manifest import Verdict

Ints = NDArray[np.int64]
DAY, HOUR = 86_400, 3_600
MIN_SHARED = 50
"""Events that both know without which their times say nothing."""
MIN_NEW = 2_000
"""New events without which their hours say nothing."""
MAX_HOURS_MOVED = 0.25
"""Distance of two distributions over the day's hours that may be chance or habit."""
MAX_USERS = 2_000
"""Whose events' times are compared."""
CLOCK_SKEW = HOUR
"""Seconds that an event may lie ahead of this machine's clock."""


def not_in_the_future(subject: Subject) -> Iterator[Verdict]:
    """Refuse events that have not happened yet."""
    times = subject.challenger.users.times
    if times is None or not len(times) or not subject.now:
        return
    ahead = np.asarray(times) > subject.now + CLOCK_SKEW
    hours = (int(np.max(times)) - subject.now) / HOUR
    reason = "share of events later than this machine's clock"
    if ahead.any():
        reason += f", by up to {hours:.1f} hours; check the time zone of the events and the clock"
    yield at_most("events of the future", float(ahead.mean()), 0, reason)


def at_the_same_times(subject: Subject) -> Iterator[Verdict]:
    """Compare the times of events that the champion knows too, then the hours of new ones."""
    champion, challenger = subject.champion, subject.challenger
    if champion is None or champion.users.times is None or challenger.users.times is None:
        return
    moved = shifts(champion, challenger)
    if len(moved) >= MIN_SHARED:
        share, hours = float((moved != 0).mean()), float(np.median(moved)) / HOUR
        reason = f"share of {len(moved)} events that the champion knows too whose time changed"
        if share > subject.config.max_moved_times:
            why = f"by {hours:+.1f} hours in the middle; check their time zone"
            reason += f", {why if hours else 'to and fro: ids or times were mixed up'}"
        yield at_most("times of known events", share, subject.config.max_moved_times, reason)
    yield from _hours_of_new_events(champion, challenger)


def shifts(champion: Bundle, challenger: Bundle) -> Ints:
    """Seconds by which events of users that both know moved; items that a user took once."""
    before, after = (_known_users(one) for one in (champion, challenger))
    common = sorted(before.keys() & after.keys())[:MAX_USERS]
    found: list[int] = []
    for user_id in common:
        old, new = _once(champion, before[user_id]), _once(challenger, after[user_id])
        found += [new[item] - old[item] for item in old.keys() & new.keys()]
    return np.array(found, np.int64)


def _known_users(bundle: Bundle) -> dict[str, int]:
    table = bundle.users.user_ids
    return {table[row]: row for row in range(1, len(table))}


def _once(bundle: Bundle, user_row: int) -> dict[str, int]:
    """Times of the items that a user took once."""
    rows, times = bundle.users.history(user_row), bundle.users.history_times(user_row)
    assert times is not None
    items, first, counts = np.unique(np.asarray(rows), return_index=True, return_counts=True)
    return {
        bundle.catalogue.item_ids[row]: int(times[at])
        for row, at, count in zip(items.tolist(), first.tolist(), counts.tolist(), strict=True)
        if count == 1
    }


def _hours_of_new_events(champion: Bundle, challenger: Bundle) -> Iterator[Verdict]:
    before, after = np.asarray(champion.users.times), np.asarray(challenger.users.times)
    newest = champion.users.newest_time or 0
    new = after[after > newest]
    old = before[before > newest - 28 * DAY]
    if min(len(new), len(old)) < MIN_NEW or new.max() - new.min() < DAY:
        return
    distance, hours, left = moved_hours(old, new)
    reason = "distance of the new events' hours of the day from the champion's last four weeks"
    shifted = distance > MAX_HOURS_MOVED and left < distance / 2 and hours
    if shifted:
        reason += f"; they lie {hours:+d} hours off and agree otherwise: a wrong time zone"
    yield at_most("hours of the day", distance, MAX_HOURS_MOVED if shifted else 1.0, reason)


def moved_hours(old: Ints, new: Ints) -> tuple[float, int, float]:
    """Distance of two distributions over hours, the shift that explains it, and what is left.

    Distance is half the sum of differences, 0 to 1.
    """
    first, second = (
        np.bincount((one // HOUR) % 24, minlength=24) / max(1, len(one)) for one in (old, new)
    )
    left = [float(np.abs(first - np.roll(second, -hours)).sum() / 2) for hours in range(24)]
    best = int(np.argmin(left))
    return left[0], best if best <= 12 else best - 24, left[best]


def stand_there_once(subject: Subject) -> Iterator[Verdict]:
    """Refuse a log that was read twice, or a day that was copied under another date."""
    report, config = subject.report, subject.config
    if rows_in := report.get("rows_in", 0):
        yield at_most(
            "duplicated rows",
            report.get("duplicates", 0) / rows_in,
            config.max_duplicates,
            f"share of the {rows_in} rows read that repeat another; a file was delivered twice",
        )
    share = copied_share(subject.challenger)
    if share is None:
        return
    before = None if subject.champion is None else copied_share(subject.champion)
    yield at_most(
        "events on two days",
        share,
        config.max_copied_events + (before or 0.0),
        "share of events whose user took the same item at the same second of another day; a day "
        "was copied under another date",
    )


def copied_share(bundle: Bundle) -> float | None:
    """Share of events that stand at the same second of another day; None where times are days."""
    if bundle.users.times is None or not len(bundle.users.times):
        return None
    times = np.asarray(bundle.users.times)
    seconds = times % DAY
    if len(np.unique(seconds)) < min(100, len(times) // 10):
        return None
    offsets = np.asarray(bundle.users.offsets)
    owners = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    keys = np.stack([owners, np.asarray(bundle.users.item_rows), seconds])
    _, counts = np.unique(keys, axis=1, return_counts=True)
    return float((counts - 1).sum() / len(times))
