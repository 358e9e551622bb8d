"""All checks on a written bundle, in the order in which people read them."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.publishing.gate.data import (
    at_the_same_times,
    complete,
    described_alike,
    input_arrived,
    not_in_the_future,
    read_once,
    too_good,
)
from pipelines.publishing.gate.lists import good_lists
from pipelines.publishing.gate.models import (
    finite_and_of_usual_size,
    ranker,
    semantic_ids,
)
from pipelines.publishing.gate.subject import Check, Subject
from serving.bundle.manifest import Verdict

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
