"""All checks on a written bundle, in the order in which people read them."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.publishing.gate.catalogue import complete, described_alike, popularity_of_events
from pipelines.publishing.gate.documents import drift, parity
from pipelines.publishing.gate.events import (
    at_the_same_times,
    not_in_the_future,
    stand_there_once,
)
from pipelines.publishing.gate.leakage import one_feature_alone, too_good
from pipelines.publishing.gate.lists import good_lists
from pipelines.publishing.gate.models import calibration, experts, semantic_ids, size_of
from pipelines.publishing.gate.subject import Check, Subject
from pipelines.publishing.gate.vectors import (
    content_is_current,
    finite_and_of_usual_size,
    index_agrees,
)
from serving.bundle.manifest import Verdict

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
    size_of,
    parity,
)


def bundle_verdicts(subject: Subject) -> list[Verdict]:
    """Run every check; none where the gate is off."""
    if not subject.config.enabled:
        return []
    return [verdict for check in CHECKS for verdict in check(subject)]
