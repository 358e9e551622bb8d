"""Checks of lists that champion and challenger make for the same users."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipelines.publishing.gate.subject import Subject, at_least, at_most
from pipelines.publishing.write_release import TIMED
from serving.bundle.load import Bundle
from serving.bundle.manifest import Verdict
from serving.recommend import Recommender
from serving.schemas import Context, Request

MIN_USERS = 20
"""Users without whom lists show no variety."""
WARM_UP = 3
FAST_ENOUGH_MS = 20.0
"""Below it a list is fast, however fast the champion's are."""


@dataclass(frozen=True)
class BundleLists:
    """Lists of one bundle."""

    bundle: Bundle
    items: list[list[str]] = field(default_factory=list)
    milliseconds: list[float] = field(default_factory=list)
    failed: set[str] = field(default_factory=set)


def drawn_users(subject: Subject) -> list[str]:
    """Draw users whom the challenger knows, and the champion if there is one."""
    table = subject.challenger.users.user_ids
    known = [table[row] for row in range(1, len(table))]
    if subject.champion is not None:
        of_champion = subject.champion.users
        known = [one for one in known if of_champion.row_of(one) is not None]
    order = np.random.default_rng(subject.seed).permutation(len(known))
    return [known[place] for place in order[: subject.config.num_queries].tolist()]


def made_lists(subject: Subject, users: Sequence[str]) -> list[BundleLists]:
    """Query both bundles in turns, so that both meet the machine in the same state."""
    bundles = [one for one in (subject.challenger, subject.champion) if one is not None]
    found = [(BundleLists(one), Recommender(one)) for one in bundles]
    moment = max((one.users.newest_time or 0) for one in bundles) + 1
    context = Context(unix_time=moment if moment > 1 else None)
    for place, user_id in enumerate([*users[:WARM_UP], *users]):
        request = Request(user_id=user_id, k=subject.config.list_length, context=context)
        for lists, recommender in found:
            begin = time.perf_counter()
            reply = recommender.answer(request)
            spent = 1_000 * (time.perf_counter() - begin)
            if place < WARM_UP:
                continue
            lists.milliseconds.append(spent)
            lists.items.append([item.item_id for item in reply.items])
            failed = [note for note in reply.degraded if note.code.startswith("failed_")]
            lists.failed.update(note.detail or note.code for note in failed)
    return [lists for lists, _ in found]


def good_lists(subject: Subject) -> Iterator[Verdict]:
    """Check lists for failures, time and variety; variety only against a champion."""
    users = drawn_users(subject)
    if not users:
        return
    challenger, *champion = made_lists(subject, users)
    names = ", ".join(sorted(challenger.failed))
    why = f"parts that raised an error while {len(users)} lists were made{names and ': ' + names}"
    yield at_most("sources that failed", len(challenger.failed), 0, why)
    empty = sum(not one for one in challenger.items) / len(users)
    yield at_most("empty lists", empty, 0, f"share of {len(users)} lists without an item")
    yield latency(subject, challenger, champion[0] if champion else None)
    if champion and len(users) >= MIN_USERS:
        yield from variety(subject, challenger, champion[0])


def latency(subject: Subject, challenger: BundleLists, champion: BundleLists | None) -> Verdict:
    """Hold the median time of a list against the budget and the champion's."""
    median, high = (float(np.quantile(challenger.milliseconds, at)) for at in (0.5, 0.99))
    bound = subject.config.max_latency_ms
    reason = f"median milliseconds of a list in this process; 99% take at most {high:.1f}"
    if champion is not None and subject.config.max_latency_ratio:
        before = float(np.median(champion.milliseconds))
        bound = min(bound, max(FAST_ENOUGH_MS, before * subject.config.max_latency_ratio))
        reason += f"; the champion's median is {before:.1f}"
    return at_most(TIMED, median, bound, reason)


def variety(subject: Subject, challenger: BundleLists, champion: BundleLists) -> Iterator[Verdict]:
    """Hold coverage and novelty of the lists against the champion's."""
    config = subject.config
    new, old = (
        len({item for one in lists.items for item in one}) for lists in (challenger, champion)
    )
    why = f"different items in {len(challenger.items)} lists: {new}, of the champion {old}"
    yield at_least("catalogue coverage", new / max(1, old), config.min_coverage, why)
    # Both by the champion's counts, so that the same lists are as novel.
    bits = [_novelty(lists, champion.bundle) for lists in (challenger, champion)]
    if bits[1] > 0:
        why = (
            f"mean novelty of listed items {bits[0]:.2f} bits, of the champion {bits[1]:.2f}; "
            "lower lists what everybody knows"
        )
        yield at_least("novelty", bits[0] / bits[1], config.min_novelty, why)


def _novelty(lists: BundleLists, counted: Bundle) -> float:
    counts, num_users = counted.item_counts, max(2, counted.users.num_user_rows - 1)
    rows = [counted.catalogue.row_of(item) for one in lists.items for item in one]
    known = [min(num_users, max(1.0, float(counts[row]))) for row in rows if row]
    return float(np.mean([math.log2(num_users / one) for one in known])) if known else 0.0
