"""Parts that a further round may add to the best bundle, in the order of their worth.

Seconds come from the stages that ran on this log and this machine (``run.json`` of each artefact),
not from the planner's constants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import polars as pl

from features.shown import SHOWN_FILE
from pipelines.auto.beside import read_seconds
from pipelines.candidates.blends import FAST, FULL
from pipelines.config.run import RunConfig
from pipelines.config.toml import Table, merge, set_value
from pipelines.engine.artifacts import MANIFEST, read_json
from pipelines.stages.list import STAGES
from recsys.models.names import GENERATIVE, SEQUENCE
from serving.bundle.manifest import Profile

ONE_ERROR = 1.0
"""Standard errors of the paired difference by which a round must be better."""
SLACK = 1.2
"""Times its estimate that a round may take: its trainings' limits and what must be left."""
RANKED_QUERIES = 4_000
"""Held-back events that a ranker is trained on in a round."""
RANKED_SECONDS, RETRAINED_SECONDS = 0.012, 0.005
"""Seconds of one of them, or of a validation query: its candidates, their features and a training;
and of one in each further training, with experts and on impressions."""
GENERATED_PASS, GENERATED_PASSES, GENERATED_REFIT = 3.0, 8.0, 2.0
"""Times a pass of the sequence model that one of the generative model takes; its passes, and those
that continue its weights on all events."""
GENERATED_SECONDS = 0.01
"""Seconds of a beam search."""
DOMAIN_ITEMS, NUM_DOMAINS = 50, 3
"""Items from which a domain gets an adapter, and domains that do."""
LEAST_SECONDS = 10.0
"""Seconds of a training, at least."""
NO_SEQUENCE = "there is no sequence model"
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

    def rows(self, stage: str, which: str = "in") -> int:
        """Return the number of rows that a stage read, or wrote (``out``)."""
        path = self.config.workspace / stage / MANIFEST
        return int(read_json(path)["rows"][which]) if path.exists() else 0

    def needed(self, one: Candidate, config: RunConfig) -> dict[str, float]:
        """Estimate the seconds of every stage that a candidate makes again, in order."""
        needed: dict[str, float] = {}
        for stage in STAGES:
            if stage.name in one.seconds:
                needed[stage.name] = one.seconds[stage.name]
            elif needed.keys() & set(stage.input_stages(config)):
                needed[stage.name] = self.took(stage.name)
        return needed


def ranker(done: Measured) -> Candidate | str:
    """Order the first candidates again, by a network with experts."""
    if (own := set_value(done.user, "ranker_training.enabled")) is not None:
        return f"ranker_training.enabled = {str(own).lower()} is set"
    queries = min(RANKED_QUERIES, done.rows("build_features"))
    choices: Table = {
        "ranker_training": {
            "enabled": True,
            "standard_errors": ONE_ERROR,
            "max_queries": queries,
            "max_epochs": 2.0,
        }
    }
    if set_value(done.user, "ranker.trunk") is None:
        choices["ranker"] = {"trunk": "auto"}
    refits = ("fit_baselines", "train_two_tower", "train_sequence")
    seconds = sum(done.took(stage) for stage in refits)
    seconds += RANKED_SECONDS * (queries + done.rows("fit_blend"))
    further = "ranker" in choices, (done.config.workspace / "build_features" / SHOWN_FILE).exists()
    seconds += RETRAINED_SECONDS * sum(further) * queries
    what = f"a network of crosses and experts, {queries:,} held-back events"
    return Candidate(name="ranker", what=what, choices=choices, seconds={"train_ranker": seconds})


def kinds_of_events(done: Measured) -> Candidate | str:
    """Read in the sequence model what was done: viewed, put into the cart, bought."""
    if not done.config.sequence_training.enabled:
        return NO_SEQUENCE
    described = read_json(done.config.workspace / "build_features" / "features.json")
    if not described.get("event_types"):
        return "all events are of one kind, or kinds are not read (features.history_event_types)"
    if done.config.sequence.reads_types:
        return "the sequence model reads them from the beginning"
    what = f"the sequence model reads {', '.join(described['event_types'])}"
    choices: Table = {SEQUENCE.section: {"reads_types": True}}
    return refitted("kinds of events", what, done, 1.0, choices)


def further_member(done: Measured) -> Candidate | str:
    """Add an encoder with another kind of blocks to the sequence model."""
    model = done.config.sequence
    if not done.config.sequence_training.enabled:
        return NO_SEQUENCE
    if set_value(done.user, SEQUENCE.section) is not None:
        return "[sequence] is set"
    number = model.num_members
    kinds = [model.blocks_of(place) for place in range(number)]
    kind = next(kind for kind in MEMBER_KINDS if kind not in kinds)
    grows = (number + 1) / number
    choices = {
        "embedding_dim": round(grows * model.embedding_dim),
        "num_members": number + 1,
        "member_blocks": [*kinds, kind],
    }
    what = f"{number + 1} encoders, the last of {kind} blocks"
    return refitted("further member", what, done, grows, {SEQUENCE.section: choices})


def longer_training(done: Measured) -> Candidate | str:
    """Train the sequence model for twice as many passes."""
    training = done.config.sequence_training
    if not training.enabled:
        return NO_SEQUENCE
    if set_value(done.user, f"{SEQUENCE.training}.max_epochs") is not None:
        return f"{SEQUENCE.training}.max_epochs is set"
    passes = 2 * training.max_epochs
    choices = {"max_epochs": passes, "epochs_per_evaluation": passes}
    what = f"{passes:.0f} passes of the sequence model"
    return refitted("longer training", what, done, 2.0, {SEQUENCE.training: choices})


def refitted(name: str, what: str, done: Measured, grows: float, choices: Table) -> Candidate:
    """Train the sequence model in so many times the seconds that it took."""
    seconds = {stage: grows * done.took(stage) for stage in ("train_sequence", "refit")}
    limit = max(LEAST_SECONDS, round(SLACK * seconds["train_sequence"], 1))
    choices = merge(choices, {SEQUENCE.training: {"max_seconds": limit}})
    return Candidate(name=name, what=what, choices=choices, seconds=seconds)


def generation(done: Measured) -> Candidate | str:
    """Generate semantic IDs by beam search, taught by the sequence model, in profile full."""
    if (own := set_value(done.user, "generative_training.enabled")) is not None:
        return f"generative_training.enabled = {str(own).lower()} is set"
    if not done.config.sequence_training.enabled:
        return NO_SEQUENCE
    if not done.rows("build_semantic_ids", "out"):
        return "items have no semantic IDs"
    passes = done.config.sequence_training.max_epochs
    one = GENERATED_PASS * done.took("train_sequence") / max(1.0, passes)
    beams = {stage: GENERATED_SECONDS * done.rows(stage) for stage in ("fit_blend", "evaluate")}
    trained = one * GENERATED_PASSES
    seconds = {
        "train_generative": trained,
        **{stage: done.took(stage) + beam for stage, beam in beams.items()},
        "refit": done.took("refit") + GENERATED_REFIT * one,
    }
    choices: Table = {
        GENERATIVE.section: {
            "max_length": min(30, done.config.sequence.max_length),
            "items": "codes_vectors",
            "carries_place": True,
            "dropout": 0.1,
            "label_smoothing": 0.0,
        },
        GENERATIVE.training: {
            "enabled": True,
            "max_epochs": GENERATED_PASSES,
            "epochs_per_evaluation": GENERATED_PASSES,
            "validation_users": 200,
            "refit_epochs": GENERATED_REFIT,
            "max_seconds": max(LEAST_SECONDS, round(SLACK * trained, 1)),
            "batch_size": done.config.sequence_training.batch_size,
            "schedule": {"decay": "linear", "final_share": 0.02},
            "teaching": {"share": 1.0, "dropped_events": 0.4},
        },
    }
    what = f"{GENERATED_PASSES:.0f} passes over semantic IDs, for profile full"
    return Candidate(name="generation", what=what, choices=choices, seconds=seconds, profile=FULL)


def adapters(done: Measured) -> Candidate | str:
    """Adapt the sequence model, or the two-tower, to the largest domains of the catalogue."""
    if set_value(done.user, "adapter.domains") is not None:
        return "adapter.domains is set"
    if not (done.config.sequence_training.enabled or done.config.two_tower_training.enabled):
        return "there is no trained model to adapt"
    path = done.config.workspace / "build_features" / "items.parquet"
    if "domain" not in pl.read_parquet_schema(path):
        return "the catalogue has no column of domains"
    sizes = pl.read_parquet(path, columns=["domain"]).drop_nulls()["domain"].value_counts()
    large = sizes.filter(pl.col("count") >= DOMAIN_ITEMS).sort("count", "domain", descending=True)
    names = large["domain"].cast(pl.String).to_list()[:NUM_DOMAINS]
    if len(sizes) < 2 or not names:
        return f"no two domains, or none of {DOMAIN_ITEMS} items"
    seconds = 2 * max(done.took("train_sequence"), done.took("train_two_tower"))
    choices: Table = {"adapter": {"domains": names, "rank": 4}}
    own = {"adapt_domains": seconds}
    return Candidate(name="adapters", what=", ".join(names), choices=choices, seconds=own)


CANDIDATES: Mapping[str, Callable[[Measured], Candidate | str]] = {
    "kinds of events": kinds_of_events,
    "ranker": ranker,
    "further member": further_member,
    "generation": generation,
    "adapters": adapters,
    "longer training": longer_training,
}
"""In the order in which they are tried; each returns why it does not apply."""
