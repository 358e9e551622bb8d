"""Checks on a written bundle, its data and its models, in the order in which people read them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from pipelines.candidates.blends import BLEND_FAST, RANKED
from pipelines.engine.daily_state import DailyState
from pipelines.engine.history import read_result
from pipelines.publishing.gate.lists import good_lists
from pipelines.publishing.gate.subject import Check, Subject, at_least, at_most
from recsys.data.string_table import StringTable
from serving.bundle.load import Bundle
from serving.bundle.manifest import Verdict
from serving.bundle.ranker import RANKER

DATA_GROUPS = ("volume", "input")
"""Signals by which data are missing, not only different."""
MAX_AGE_SECONDS = 2 * 86_400


def input_arrived(subject: Subject) -> Iterator[Verdict]:
    """Refuse while the monitor says that much of the input is missing; models can learn drift."""
    workspace = subject.workspace
    document = read_result(None if workspace is None else DailyState(workspace).monitor)
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


MIN_ROWS = 10
"""Rows without which a table has no usual size."""


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


def norm_ratio(table: Tensor) -> float:
    """Longest row against the median of rows that are not 0; 0 for a small table."""
    norms = table[1:].float().norm(dim=1)
    norms = norms[norms > 0]
    if len(norms) < MIN_ROWS:
        return 0.0
    return float(norms.max() / norms.median())


def finite_and_of_usual_size(subject: Subject) -> Iterator[Verdict]:
    """Refuse NaN, infinities and rows far longer than the others, in any array."""
    bundle, broken = subject.challenger, list[str]()
    longest, where = 0.0, "no table"
    for name, array in iterate_arrays(bundle.directory, sorted(bundle.manifest.files)):
        # Popularity gives row 0 minus infinity; missing properties are NaN.
        whole = name.startswith(("popularity/", "properties/"))
        if not whole and not bool(torch.isfinite(array).all()):
            broken.append(name)
        elif not whole and array.ndim == 2 and (ratio := norm_ratio(array)) > longest:
            longest, where = ratio, name
    reason = "arrays of the bundle with NaN or infinite numbers"
    if broken:
        reason += f": {', '.join(broken[:3])}; training diverged or a file was damaged"
    yield at_most("finite numbers", len(broken), 0, reason)
    why = f"longest row of {where} against the median row; far above it, training exploded there"
    yield at_most("length of vectors", longest, subject.config.max_norm_ratio, why)


MIN_ITEMS = 20
"""Items without which codes cannot be spread."""
MIN_CANDIDATES = 1_000
"""Routed candidates an expert without which the load is chance."""
MIN_POSITIVES = 50
CALIBRATION = "calibration.json"


def semantic_ids(subject: Subject) -> Iterator[Verdict]:
    """Refuse IDs whose codes collapsed; those that two items share do not load."""
    found = subject.challenger.semantic_ids
    if found is None:
        return
    codes = found.codes[found.codes[:, 0] >= 0]
    if len(codes) < MIN_ITEMS:
        return
    size = found.ids.level_sizes[0]
    used = perplexity(torch.bincount(codes[:, 0].long(), minlength=size))
    yield at_least(
        "use of the first codes",
        (used - 1) / max(1, min(size, len(codes)) - 1),
        subject.config.min_code_use,
        f"perplexity {used:.1f} of {size} codes over {len(codes)} items; near one code the "
        "codebook collapsed, train it anew with another seed or fewer codes",
    )


def perplexity(counts: Tensor) -> float:
    """2 to the entropy of the use of codes."""
    share = counts[counts > 0].double() / counts.sum()
    return float(2 ** -(share * share.log2()).sum())


def ranker(subject: Subject) -> Iterator[Verdict]:
    """Refuse a ranker with an expert without candidates, or with probabilities far from events."""
    config, path = subject.config, subject.challenger.directory / RANKER / CALIBRATION
    if subject.challenger.ranker is None or not path.is_file():
        return
    measured = json.loads(path.read_text(encoding="utf-8"))
    routing = measured.get("routing") or {}
    if routing and routing["num_candidates"] >= MIN_CANDIDATES * routing["num_experts"]:
        yield at_least(
            "load of each expert",
            min(routing["load"]) * routing["num_experts"],
            config.min_expert_load,
            "smallest share of candidates that an expert of the ranker gets, 1 is even; a dead "
            "expert learns nothing, train with fewer experts",
        )
    for task, found in measured.get("tasks", {}).items():
        if found["observed"] * found["num_labels"] < MIN_POSITIVES:
            continue
        bound = min(config.max_calibration_error, found["observed"])
        why = (
            "expected calibration error of the ranker's probabilities on validation; the bound is "
            "at most the share of positives"
        )
        yield at_most(f"calibration of {task}", found["calibration_error"], bound, why)
        ratio = found["predicted"] / found["observed"]
        away = max(ratio, 1 / ratio) if ratio > 0 else math.inf
        why = f"{found['predicted']:.4f} predicted, {found['observed']:.4f} observed"
        yield at_most(f"level of {task}", away, config.max_calibration_ratio, why)


CHECKS: Sequence[Check] = (
    complete,
    described_alike,
    read_once,
    at_the_same_times,
    not_in_the_future,
    input_arrived,
    finite_and_of_usual_size,
    semantic_ids,
    ranker,
    too_good,
    good_lists,
)


def bundle_verdicts(subject: Subject) -> list[Verdict]:
    """Run every check; none where the gate is off."""
    if not subject.config.enabled:
        return []
    return [verdict for check in CHECKS for verdict in check(subject)]
