"""Checks of the data: other commands' findings, items and users, events, leaked labels.

Axes: E events, Q test queries, F values of a feature.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipelines.candidates.blends import BLEND_FAST, RANKED
from pipelines.engine.history import MONITOR, PARITY, read_result
from pipelines.publishing.gate.models import common_rows
from pipelines.publishing.gate.subject import Subject, at_least, at_most, warning
from recsys.data.string_table import StringTable
from recsys.models.popularity import Popularity
from serving.bundle.load import Bundle
from serving.bundle.manifest import Verdict

DATA_GROUPS = ("volume", "input")
"""Signals by which data are missing, not only different."""
MAX_AGE_SECONDS = 2 * 86_400


def parity(subject: Subject) -> Iterator[Verdict]:
    """Refuse while served lists cannot be recomputed from the artefacts.

    Requests of an earlier bundle only warn: their difference may be repaired in this one.
    """
    document = read_result(subject.workspace, PARITY)
    recomputed = int(document.get("recomputed") or 0)
    if not recomputed:
        return
    share = 1 - int(document.get("equal") or 0) / recomputed
    reason = f"share of {recomputed} logged requests whose recomputed list differs"
    differences = document.get("differences") or []
    if share and differences:
        reason += f"; first: {json.dumps(differences[:1], ensure_ascii=False)[:200]}"
    bundle = str(document.get("bundle") or "")
    served = None if subject.champion is None else subject.champion.version
    if served is not None and bundle not in ("", served):
        yield warning("parity of serving", f"measured on bundle {bundle}: {reason}", share)
        return
    yield at_most("parity of serving", share, subject.config.max_parity_differences, reason)


def drift(subject: Subject) -> Iterator[Verdict]:
    """Refuse while much of the input is missing; drift that models can learn only warns."""
    document = read_result(subject.workspace, MONITOR)
    if not document or not is_recent(document, subject.now):
        return
    signals = [one for one in document.get("signals") or [] if isinstance(one, dict)]
    raised = [one for one in signals if one.get("alarm")]
    missing = [one for one in raised if is_missing(one)]
    others = [one for one in raised if one not in missing]
    others += [one for one in document.get("freshness") or [] if one.get("alarm")]
    reason = "signals of recsys monitor that say that part of the input is missing"
    if missing:
        reason += f": {titles(missing)}; repair the input, then run recsys monitor"
    yield at_most("input of the day", len(missing), 0, reason)
    if others:
        yield warning("drift", f"alarms that do not say the data are broken: {titles(others)}")


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


def titles(signals: Sequence[dict[str, Any]]) -> str:
    """Format the titles of signals."""
    return ", ".join(str(one.get("title") or one.get("name")) for one in signals)


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
    """Refuse a catalogue most of whose items have other texts, or other categories, than before.

    A category that was only renamed is recognised by its items.
    """
    if subject.champion is None:
        return
    old, new = common_rows(subject)
    if len(old) < MIN_KNOWN:
        return
    before, after = subject.champion.catalogue, subject.challenger.catalogue
    texts = [
        before.display_texts[a] != after.display_texts[b] for a, b in zip(old, new, strict=True)
    ]
    most, both = subject.config.max_changed_texts, "share of the items that both have"
    why = f"{both} whose text changed; a wrong column or a wrong file changes all"
    yield at_most("texts of the catalogue", float(np.mean(texts)), most, why)
    groups = [_first_category(one, rows) for one, rows in ((before, old), (after, new))]
    sizes = [len(set(one)) for one in groups]
    moved = 1.0 if min(sizes) < 2 <= max(sizes) else 1 - _most_renamed(*groups)
    why = f"{both} which are no longer with the other items of their category"
    yield at_most("categories of the catalogue", moved, most, why)


def _first_category(catalogue: object, rows: NDArray[np.int64]) -> list[int]:
    values, offsets = catalogue.category_values, catalogue.category_offsets  # type: ignore[attr-defined]
    return [
        int(values[offsets[row]]) if offsets[row + 1] > offsets[row] else 0 for row in rows.tolist()
    ]


def _most_renamed(before: list[int], after: list[int]) -> float:
    """Share of items that are where most items of their earlier category went."""
    pairs: dict[int, dict[int, int]] = {}
    for one, other in zip(before, after, strict=True):
        counts = pairs.setdefault(one, {})
        counts[other] = counts.get(other, 0) + 1
    return sum(max(counts.values()) for counts in pairs.values()) / max(1, len(before))


def popularity_of_events(subject: Subject) -> Iterator[Verdict]:
    """Recount the bundle's events and compare with the popularity that it serves."""
    bundle = subject.challenger
    users = bundle.users
    if bundle.num_item_rows <= MIN_KNOWN or not len(users.item_rows):
        return
    times = None if users.times is None else np.asarray(users.times)
    counted = Popularity.fit(
        np.asarray(users.item_rows), times, bundle.num_item_rows, bundle.popularity.config
    )
    found = rank_correlation(counted.item_scores[1:], bundle.popularity.item_scores[1:])
    why = "rank correlation of the served popularity with a count of the bundle's events"
    yield at_least("popularity of these events", found, 0.5, why)


def rank_correlation(first: Tensor, second: Tensor) -> float:
    """Spearman's, ties with their mean rank; 1 where either does not vary."""
    ranks = [_mean_ranks(one.double()) for one in (first, second)]
    if min(float(one.std()) for one in ranks) == 0:
        return 1.0
    return float(torch.corrcoef(torch.stack(ranks))[0, 1])


def _mean_ranks(values: Tensor) -> Tensor:
    _, place, counts = torch.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    ranks: Tensor = (last - (counts.double() - 1) / 2)[place]
    return ranks


Ints = NDArray[np.int64]
DAY, HOUR = 86_400, 3_600
MIN_SHARED = 50
"""Events that both know without which their times say nothing."""
MIN_NEW = 2_000
"""New events without which their hours say nothing."""
MAX_HOURS_MOVED = 0.25
"""Distance of two distributions over the day's hours that may be chance or habit."""
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
    """Distance of two distributions over hours, the shift that explains it, and the rest.

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
        share = report.get("duplicates", 0) / rows_in
        why = f"share of the {rows_in} rows read that repeat another; a file was delivered twice"
        yield at_most("duplicated rows", share, config.max_duplicates, why)
    if (share := copied_share(subject.challenger)) is None:
        return
    before = None if subject.champion is None else copied_share(subject.champion)
    why = (
        "share of events whose user took the same item at the same second of another day; a day "
        "was copied under another date"
    )
    yield at_most("events on two days", share, config.max_copied_events + (before or 0.0), why)


def copied_share(bundle: Bundle) -> float | None:
    """Share of events at the same second of another day; None if times are days."""
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


LOOK = (
    "looks too good: find out why before it is served. If it is real, raise release.gate.max_gain"
)
MIN_ANSWERS = 200
K = 10
MIN_TIMES_OF_CHANCE = 3.0
"""A feature that finds this many times what popularity finds, or half of what popularity leaves,
and more than the served list, is the label."""


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


def one_feature_alone(subject: Subject) -> Iterator[Verdict]:
    """Refuse a feature of users that alone finds the held-out items."""
    answers, bundle = subject.answered, subject.challenger
    if answers is None or answers["user_id"].n_unique() < MIN_ANSWERS:
        return
    first = answers.unique("user_id", keep="first", maintain_order=True)
    users = np.array([bundle.users.row_of(one) or 0 for one in first["user_id"]])
    items = np.array([bundle.catalogue.row_of(one) or 0 for one in first["item_id"]])
    served = _hits(first["rank"])
    popular = found_by(np.zeros(len(items), np.int64), items)
    bound = max(served, min(MIN_TIMES_OF_CHANCE * popular, (1 + popular) / 2))
    for name, values in bundle.users.features.items():
        alone = found_by(np.asarray(values)[users], items)
        if alone > bound:
            yield at_most(
                f"user feature {name} alone",
                alone,
                bound,
                f"share of held-out items among the {K} that others with the same value took; the "
                f"served list finds {served:.3f}. The label reached this feature",
            )


def _hits(ranks: pl.Series) -> float:
    return float(ranks.fill_null(K + 1).is_between(1, K).to_numpy().mean())


def found_by(values: NDArray[np.int64], items: NDArray[np.int64]) -> float:
    """Share of held-out items among the K most taken by the other half with the same value."""
    half = np.random.default_rng(0).permutation(len(items)) % 2
    hits = 0
    for side in (0, 1):
        of_others, own = half != side, half == side
        for value in np.unique(values[own]):
            counts = np.bincount(items[of_others & (values == value)])
            most = np.argsort(-counts, kind="stable")[:K]
            hits += int(np.isin(items[own & (values == value)], most[counts[most] > 0]).sum())
    return hits / max(1, len(items))
