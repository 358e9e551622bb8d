"""Parts that a further round may add to the best bundle, in the order of their worth.

Seconds come from the stages that ran on this log and this machine (``run.json`` of each artefact),
not from the planner's constants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pipelines.auto.beside import read_seconds
from pipelines.candidates.blends import FAST
from pipelines.config.run import RunConfig
from pipelines.config.toml import Table, set_value
from pipelines.engine.artifacts import read_json
from pipelines.stages.list import STAGES
from recsys.models.names import SEQUENCE
from serving.bundle.manifest import Profile

ONE_ERROR = 1.0
"""Standard errors of the paired difference by which a round must be better."""
SLACK = 1.2
"""Times its estimate that a round may take: its trainings' limits and what must be left."""
RANKED_QUERIES = 4_000
"""Held-back events that a ranker is trained on in a round."""
RANKED_SECONDS = 0.008
"""Seconds of one of them: its candidates, their features and a pass; and of a validation query."""
MEMBER_KINDS = ("attention", "convolution", "hstu")
"""Kinds of blocks of further members, in order."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One part that may be added."""

    name: str
    what: str
    choices: Table
    """Over those of the round before."""
    seconds: Mapping[str, float]
    """Estimated seconds of the stages that change; others that follow take what they took."""
    profile: Profile = FAST
    """Profile whose list must become better."""


@dataclass(frozen=True)
class Measured:
    """A finished round: its configuration, and what its stages took."""

    config: RunConfig
    user: Table
    """Keys that the configuration sets itself."""

    def took(self, stage: str) -> float:
        """Return the seconds that a stage took; 0 before it ran."""
        return read_seconds(self.config.workspace, stage)

    def rows(self, stage: str) -> int:
        """Return the number of rows that a stage read."""
        path = self.config.workspace / stage / "manifest.json"
        return int(read_json(path)["rows"]["in"]) if path.exists() else 0

    def needed(self, one: Candidate, config: RunConfig) -> dict[str, float]:
        """Estimate the seconds of every stage that a candidate makes again, in order."""
        needed: dict[str, float] = {}
        for stage in STAGES:
            if stage.name in one.seconds:
                needed[stage.name] = one.seconds[stage.name]
            elif needed.keys() & set(stage.input_stages(config)):
                needed[stage.name] = self.took(stage.name)
        return needed


def ranker(done: Measured) -> Candidate | None:
    """Order the first candidates again, by a network with experts."""
    if set_value(done.user, "ranker_training.enabled") is not None:
        return None
    queries = min(RANKED_QUERIES, done.rows("build_features"))
    choices: Table = {
        "ranker_training": {
            "enabled": True,
            "standard_errors": ONE_ERROR,
            "max_queries": queries,
            "max_epochs": 2.0,
        },
    }
    refits = ("fit_baselines", "train_two_tower", "train_sequence")
    seconds = sum(done.took(stage) for stage in refits)
    seconds += RANKED_SECONDS * (queries + done.rows("fit_blend"))
    what = f"{done.config.ranker.num_experts} experts, {queries:,} held-back events"
    return Candidate(name="ranker", what=what, choices=choices, seconds={"train_ranker": seconds})


def further_member(done: Measured) -> Candidate | None:
    """Add an encoder with another kind of blocks to the sequence model."""
    model, training = done.config.sequence, done.config.sequence_training
    if not training.enabled or set_value(done.user, SEQUENCE.section) is not None:
        return None
    number = model.num_members
    kinds = tuple(model.blocks_of(place) for place in range(number))
    kind = next((kind for kind in MEMBER_KINDS if kind not in kinds), None)
    if kind is None:
        return None
    grows = (number + 1) / number
    seconds = {stage: grows * done.took(stage) for stage in ("train_sequence", "refit")}
    model_choices = {
        "embedding_dim": round(grows * model.embedding_dim),
        "num_members": number + 1,
        "member_blocks": [*kinds, kind],
    }
    choices = {
        SEQUENCE.section: model_choices,
        SEQUENCE.training: {"max_seconds": round(SLACK * seconds["train_sequence"], 1)},
    }
    what = f"sequence model of {number + 1} members, the last of {kind} blocks"
    return Candidate(name="further member", what=what, choices=choices, seconds=seconds)


CANDIDATES: Mapping[str, Callable[[Measured], Candidate | None]] = {
    "ranker": ranker,
    "further member": further_member,
}
"""Each returns None if it does not apply, or the configuration decides on it."""
