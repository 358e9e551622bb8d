"""Checks of the data: findings of the monitor, items and users, events, gains that are too good."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.candidates.blends import BLEND_FAST, RANKED
from pipelines.engine.history import MONITOR, read_result
from pipelines.publishing.gate.subject import Subject, at_least, at_most
from recsys.data.string_table import StringTable
from serving.bundle.load import Bundle
from serving.bundle.manifest import Verdict

DATA_GROUPS = ("volume", "input")
"""Signals by which data are missing, not only different."""
MAX_AGE_SECONDS = 2 * 86_400


def input_arrived(subject: Subject) -> Iterator[Verdict]:
    """Refuse while the monitor says that much of the input is missing; models can learn drift."""
    document = read_result(subject.workspace, MONITOR)
    if not document or not is_recent(document, subject.now):
        return
    signals = [one for one in document.get("signals") or [] if isinstance(one, dict)]
    missing = [one for one in signals if one.get("alarm") and is_missing(one)]
    reason = "signals of recsys monitor that say that part of the input is missing"
    if missing:
        titles = ", ".join(str(one.get("title") or one.get("name")) for one in missing)
        reason += f": {titles}; repair the input, then run recsys monitor"
    yield at_most("input of the day", len(missing), 0, reason)


def is_missing(signal: dict[str, Any]) -> bool:
    """True if a signal means far fewer events or users than usual."""
    value, low = signal.get("value"), signal.get("low")
    if signal.get("drift") or signal.get("group") not in DATA_GROUPS:
        return False
    return value is not None and low is not None and float(value) < float(low)


def is_recent(document: dict[str, Any], now: float) -> bool:
    """True if the monitor ran within two days; an older alarm says nothing of this input."""
    try:
        moment = datetime.fromisoformat(str(document.get("as_of"))).astimezone(UTC)
    except ValueError:
        return False
    return abs(now - moment.timestamp()) <= MAX_AGE_SECONDS


MIN_KNOWN = 10
"""Items or users of the champion without which a share of them says nothing."""


def complete(subject: Subject) -> Iterator[Verdict]:
    """Refuse a catalogue, or a log, of which much is missing, and ids in the wrong column."""
    if subject.champion is None:
        return
    bundles, config = (subject.champion, subject.challenger), subject.config
    items, new_items = (_rows(one.catalogue.item_ids).keys() for one in bundles)
    users, new_users = (_rows(one.users.user_ids).keys() for one in bundles)
    kept_items, kept_users, as_items = (
        len(known & found) / max(1, len(known))
        for known, found in ((items, new_items), (users, new_users), (users, new_items))
    )
    swapped = as_items > kept_items
    hint = "; its item ids are user ids: the columns were swapped" if swapped else ""
    if len(items) >= MIN_KNOWN:
        why = (
            f"share of the champion's {len(items)} items that are in this bundle ({len(new_items)} "
            f"items){hint}"
        )
        yield at_least("catalogue completeness", kept_items, config.min_kept_items, why)
    if len(users) >= MIN_KNOWN:
        why = f"share of the champion's {len(users)} users that are in this bundle{hint}"
        yield at_least("user completeness", kept_users, config.min_kept_users, why)


def _rows(table: StringTable) -> dict[str, int]:
    """Map each id of a table to its row; row 0 is none."""
    return {table[row]: row for row in range(1, len(table))}


def described_alike(subject: Subject) -> Iterator[Verdict]:
    """Refuse a catalogue most of whose items have other texts than before."""
    if subject.champion is None:
        return
    before, after = subject.champion.catalogue, subject.challenger.catalogue
    rows = _rows(after.item_ids)
    changed = [
        before.display_texts[row] != after.display_texts[rows[item]]
        for item, row in _rows(before.item_ids).items()
        if item in rows
    ]
    if len(changed) < MIN_KNOWN:
        return
    why = (
        "share of the items that both have whose text changed; a wrong column or a wrong file "
        "changes all"
    )
    most = subject.config.max_changed_texts
    yield at_most("texts of the catalogue", float(np.mean(changed)), most, why)


Ints = NDArray[np.int64]
DAY, HOUR = 86_400, 3_600
MIN_SHARED = 50
"""Events that both know without which their times say nothing."""
COMPARED_USERS = 2_000
CLOCK_SKEW = HOUR
"""Seconds that an event may be ahead of this machine's clock."""


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
    """Compare the times of events that the champion knows too."""
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


def shifts(champion: Bundle, challenger: Bundle) -> Ints:
    """Seconds by which events of users that both know moved; items that a user took once."""
    before, after = (_rows(one.users.user_ids) for one in (champion, challenger))
    common = sorted(before.keys() & after.keys())[:COMPARED_USERS]
    found: list[int] = []
    for user_id in common:
        old, new = _once(champion, before[user_id]), _once(challenger, after[user_id])
        found += [new[item] - old[item] for item in old.keys() & new.keys()]
    return np.array(found, np.int64)


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


def read_once(subject: Subject) -> Iterator[Verdict]:
    """Refuse a log that was read twice."""
    if rows_in := subject.report.get("rows_in", 0):
        share = subject.report.get("duplicates", 0) / rows_in
        why = f"share of the {rows_in} rows read that repeat another; a file was delivered twice"
        yield at_most("duplicated rows", share, subject.config.max_duplicates, why)


LOOK = (
    "looks too good: find out why before it is served. If it is real, raise release.gate.max_gain"
)
MIN_ANSWERS = 200


def too_good(subject: Subject) -> Iterator[Verdict]:
    """Hold back a gain that no retraining brings."""
    most = subject.config.max_gain
    if not most:
        return
    by = subject.paired
    if by is not None and np.isfinite(by.relative) and not new_models(subject):
        yield at_most(
            "gain over the champion",
            by.relative,
            most,
            f"relative gain on the same queries, {by.challenger:.4f} against {by.champion:.4f}; "
            f"above the bound it {LOOK}",
        )
    ranked, blend = (
        subject.metrics.get(name, {}).get(subject.metric) for name in (RANKED, BLEND_FAST)
    )
    answers = subject.answered
    if ranked is not None and blend and answers is not None and len(answers) >= MIN_ANSWERS:
        yield at_most(
            "gain of the ranker",
            ranked / blend - 1,
            most,
            f"{ranked:.4f} against {blend:.4f} of the list that it reorders; above the bound one "
            f"of its features may hold the label, and it {LOOK}",
        )


def new_models(subject: Subject) -> set[str]:
    """List the models that the champion lacks: they may double its recall."""
    before = () if subject.champion is None else subject.champion.manifest.models
    return {*subject.challenger.manifest.models} - {*before}
