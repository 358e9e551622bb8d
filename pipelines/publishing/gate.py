"""Checks on a bundle as it was written, in the order in which people read them.

They find missing or broken data, arrays, models and lists. Its metrics are checked by
`pipelines.publishing.comparison`.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from pipelines.config.operation import TIMED, GateConfig
from recsys.data.string_table import StringTable
from recsys.evaluation.paired import Paired
from serving.bundle.load import Bundle
from serving.bundle.manifest import Verdict
from serving.bundle.ranker import RANKER
from serving.recommend import Recommender
from serving.schemas import Context, Request

MIN_KNOWN = 10
"""Items or users of the champion without which a share of them says nothing."""
HOUR = 3_600
CLOCK_SKEW = HOUR
"""Seconds that an event may be ahead of this machine's clock."""
MIN_SHARED = 50
"""Events that both know without which their times say nothing."""
COMPARED_USERS = 2_000
MAX_NORM_RATIO = 50.0
"""Longest vector of a table against the median."""
MIN_ITEMS = 20
"""Items without which codes cannot be spread."""
MIN_CODE_USE = 0.1
"""Perplexity of the first codes, from 0 (one code for all) to 1 (all codes equally often)."""
CALIBRATION = "calibration.json"
MIN_CANDIDATES = 1_000
"""Routed candidates an expert without which the load is chance."""
MIN_EXPERT_LOAD = 0.05
"""Share of candidates that each expert of the ranker gets, 1 is an even share."""
MIN_USERS = 20
"""Users without whom lists show no variety."""
WARM_UP = 3
FAST_ENOUGH_MS = 20.0
"""Below it a list is fast, however fast the champion's are."""
LOOK = (
    "looks too good: find out why before it is served. If it is real, raise release.gate.max_gain"
)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A challenger that is written and loaded, and what it is held against."""

    challenger: Bundle
    champion: Bundle | None = None
    config: GateConfig = field(default_factory=GateConfig)
    paired: Paired | None = None
    """Difference on the same queries, if both answered enough of them."""
    ranked: tuple[float, float] = (0.0, 0.0)
    """Metric of the ranker's lists and of those that it reorders, if enough users tell."""
    report: dict[str, Any] = field(default_factory=dict)
    now: float = 0.0
    seed: int = 0

    @property
    def adds_models(self) -> bool:
        """True if the champion lacks a model of the challenger."""
        before = () if self.champion is None else self.champion.manifest.models
        return not {*self.challenger.manifest.models} <= {*before}


Check = Callable[[Subject], Iterator[Verdict]]


def at_least(name: str, value: float, bound: float, reason: str) -> Verdict:
    """Pass if the value reaches the bound; a value that is not a number never does."""
    return _verdict(name, value, bound, value >= bound, reason)


def at_most(name: str, value: float, bound: float, reason: str) -> Verdict:
    """Pass if the value does not exceed the bound; one that is not a number always does."""
    return _verdict(name, value, bound, value <= bound, reason)


def _verdict(name: str, value: float, bound: float, holds: bool, reason: str) -> Verdict:
    finite = math.isfinite(value)
    return Verdict(
        name=name,
        value=float(value) if finite else None,
        bound=float(bound),
        passed=bool(finite and holds),
        reason=reason if finite else f"{reason}; the value is {value}",
    )


def complete(subject: Subject) -> Iterator[Verdict]:
    """Refuse a catalogue, or a log, of which much is missing, and ids in the wrong column."""
    if subject.champion is None:
        return
    config, bundles = subject.config, (subject.champion, subject.challenger)
    items, new_items = ({*_rows(one.catalogue.item_ids)} for one in bundles)
    users, new_users = ({*_rows(one.users.user_ids)} for one in bundles)
    swapped = len(users & new_items) * len(items) > len(items & new_items) * len(users)
    hint = "; its item ids are user ids: the columns were swapped" if swapped else ""
    for name, kind, before, after, bound in (
        ("catalogue", "items", items, new_items, config.min_kept_items),
        ("user", "users", users, new_users, config.min_kept_users),
    ):
        if len(before) >= MIN_KNOWN:
            why = f"share of the champion's {len(before)} {kind} that are in this bundle{hint}"
            yield at_least(f"{name} completeness", len(before & after) / len(before), bound, why)


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


def shifts(champion: Bundle, challenger: Bundle) -> NDArray[np.int64]:
    """Seconds by which events of users that both know moved; items that a user took once."""
    known = _rows(champion.users.user_ids).keys() & _rows(challenger.users.user_ids).keys()
    common = sorted(known)[:COMPARED_USERS]
    before, after = (_times(one, common) for one in (champion, challenger))
    joined = before.join(after, on=["user", "item"])
    return (joined["time_right"] - joined["time"]).to_numpy()


def _times(bundle: Bundle, user_ids: Sequence[str]) -> pl.DataFrame:
    """List the times of the items that a user took once."""
    users, names, events = bundle.users, bundle.catalogue.item_ids, []
    for user_id in user_ids:
        row = users.row_of(user_id) or 0
        rows, times, _ = users.events(row)
        assert times is not None
        items = [names[item] for item in rows.tolist()]
        events += [(user_id, *one) for one in zip(items, times.tolist(), strict=True)]
    columns = {"user": pl.String, "item": pl.String, "time": pl.Int64}
    found = pl.DataFrame(events, columns, orient="row")
    return found.filter(pl.len().over("user", "item") == 1)


def read_once(subject: Subject) -> Iterator[Verdict]:
    """Refuse a log that was read twice."""
    if rows_in := subject.report.get("rows_in", 0):
        share = subject.report.get("duplicates", 0) / rows_in
        why = f"share of the {rows_in} rows read that repeat another; a file was delivered twice"
        yield at_most("duplicated rows", share, subject.config.max_duplicates, why)


def too_good(subject: Subject) -> Iterator[Verdict]:
    """Hold back a gain that no retraining brings; models that the champion lacks may double it."""
    by, most = subject.paired, subject.config.max_gain
    if most and by is not None and np.isfinite(by.relative) and not subject.adds_models:
        reason = (
            f"relative gain on the same queries, {by.challenger:.4f} against {by.champion:.4f}; "
            f"above the bound it {LOOK}"
        )
        yield at_most("gain over the champion", by.relative, most, reason)
    ranked, blend = subject.ranked
    if most and blend:
        reason = (
            f"{ranked:.4f} against {blend:.4f} of the list that it reorders; above the bound one "
            f"of its features may hold the label, and it {LOOK}"
        )
        yield at_most("gain of the ranker", ranked / blend - 1, most, reason)


def iterate_arrays(directory: Path, files: list[str]) -> Iterator[tuple[str, Tensor]]:
    """Read every array of floating point, one at a time, with its name."""
    for name in files:
        path = directory / name
        if path.suffix == ".npy":
            array = np.load(path, mmap_mode="r", allow_pickle=False)
            if array.dtype.kind == "f":
                yield name, torch.from_numpy(np.array(array, np.float32))
        elif path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as tensors:
                for key in tensors.keys():  # noqa: SIM118
                    tensor = tensors.get_tensor(key)
                    if tensor.is_floating_point():
                        yield f"{name}:{key}", tensor


def usual_numbers(subject: Subject) -> Iterator[Verdict]:
    """Refuse NaN, infinities and rows far longer than the others, in any array."""
    bundle, broken, longest, where = subject.challenger, list[str](), 0.0, "no table"
    for name, array in iterate_arrays(bundle.directory, sorted(bundle.manifest.files)):
        # Popularity gives row 0 minus infinity; missing properties are NaN.
        if name.startswith(("popularity/", "properties/")):
            continue
        if not bool(torch.isfinite(array).all()):
            broken.append(name)
        elif array.ndim == 2 and (ratio := norm_ratio(array)) > longest:
            longest, where = ratio, name
    reason = "arrays of the bundle with NaN or infinite numbers"
    if broken:
        reason += f": {', '.join(broken[:3])}; training diverged or a file was damaged"
    yield at_most("finite numbers", len(broken), 0, reason)
    why = f"longest row of {where} against the median row; far above it, training exploded there"
    yield at_most("length of vectors", longest, MAX_NORM_RATIO, why)


def norm_ratio(table: Tensor) -> float:
    """Longest row against the median of rows that are not 0; 0 for a small table."""
    norms = table[1:].float().norm(dim=1)
    norms = norms[norms > 0]
    return float(norms.max() / norms.median()) if len(norms) >= MIN_KNOWN else 0.0


def codes_used(subject: Subject) -> Iterator[Verdict]:
    """Refuse semantic IDs whose codes collapsed; those that two items share do not load."""
    found = subject.challenger.semantic_ids
    codes = None if found is None else found.codes[found.codes[:, 0] >= 0]
    if found is None or codes is None or len(codes) < MIN_ITEMS:
        return
    size = found.ids.level_sizes[0]
    share = torch.bincount(codes[:, 0].long(), minlength=size).double() / len(codes)
    used = 2 ** float(torch.special.entr(share).sum() / math.log(2))
    yield at_least(
        "use of the first codes",
        (used - 1) / max(1, min(size, len(codes)) - 1),
        MIN_CODE_USE,
        f"perplexity {used:.1f} of {size} codes over {len(codes)} items; near one code the "
        "codebook collapsed, train it again with another seed or fewer codes",
    )


def experts_used(subject: Subject) -> Iterator[Verdict]:
    """Refuse a ranker with an expert without candidates."""
    path = subject.challenger.directory / RANKER / CALIBRATION
    if subject.challenger.ranker is None or not path.is_file():
        return
    routing = json.loads(path.read_text(encoding="utf-8")).get("routing") or {}
    if routing and routing["num_candidates"] >= MIN_CANDIDATES * routing["num_experts"]:
        least = min(routing["load"]) * routing["num_experts"]
        why = (
            "smallest share of candidates that an expert of the ranker gets, 1 is even; a dead "
            "expert learns nothing, train with fewer experts"
        )
        yield at_least("load of each expert", least, MIN_EXPERT_LOAD, why)


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
    # Models that the champion lacks may list the items of a few queries more often.
    if champion and len(users) >= MIN_USERS and not subject.adds_models:
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


CHECKS: Sequence[Check] = (
    complete,
    described_alike,
    read_once,
    at_the_same_times,
    not_in_the_future,
    usual_numbers,
    codes_used,
    experts_used,
    too_good,
    good_lists,
)


def bundle_verdicts(subject: Subject) -> list[Verdict]:
    """Run every check; none where the gate is off."""
    if not subject.config.enabled:
        return []
    return [verdict for check in CHECKS for verdict in check(subject)]
