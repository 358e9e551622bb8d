"""All checks on a written bundle, in the order in which people read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipelines.publishing.gate.data import (
    at_the_same_times,
    complete,
    described_alike,
    drift,
    not_in_the_future,
    one_feature_alone,
    parity,
    popularity_of_events,
    stand_there_once,
    too_good,
)
from pipelines.publishing.gate.lists import good_lists
from pipelines.publishing.gate.models import (
    calibration,
    content_is_current,
    experts,
    finite_and_of_usual_size,
    index_agrees,
    semantic_ids,
)
from pipelines.publishing.gate.subject import Check, Subject, at_most
from serving.bundle.manifest import Verdict

MEGABYTE = 1 << 20
SMALL = 512 * MEGABYTE
"""Bytes below which a bundle fits any server."""


def bundle_size(subject: Subject) -> Iterator[Verdict]:
    """Hold the bundle's bytes against the champion's; a small one may grow as it likes."""
    ratio = subject.config.max_size_ratio
    if subject.champion is None or not ratio:
        return
    new, old = (
        sum(file.size for file in one.manifest.files.values())
        for one in (subject.challenger, subject.champion)
    )
    yield at_most(
        "size",
        new / max(1, old) if new > SMALL else 0,
        ratio,
        f"{new / MEGABYTE:.1f} MB, of the champion {old / MEGABYTE:.1f} MB",
    )


CHECKS: Sequence[Check] = (
    complete,
    described_alike,
    stand_there_once,
    at_the_same_times,
    not_in_the_future,
    drift,
    popularity_of_events,
    content_is_current,
    finite_and_of_usual_size,
    index_agrees,
    semantic_ids,
    experts,
    calibration,
    too_good,
    one_feature_alone,
    good_lists,
    bundle_size,
    parity,
)


def bundle_verdicts(subject: Subject) -> list[Verdict]:
    """Run every check; none where the gate is off."""
    if not subject.config.enabled:
        return []
    return [verdict for check in CHECKS for verdict in check(subject)]
