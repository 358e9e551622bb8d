"""Parts that a further round may add to the best bundle, in the order of their worth.

Seconds come from the stages that ran on this log and this machine (``run.json`` of each artefact,
and the steps of its trainings), where there are any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import polars as pl

from pipelines.auto.beside import Measured
from pipelines.config.toml import Table, set_value
from recsys.models.names import SEQUENCE

ONE_ERROR = 1.0
"""Standard errors of the paired difference by which a round must be better."""
SLACK = 1.2
"""Times its estimate that a round may take: its trainings' limits and what must be left."""
RANKED_QUERIES = 4_000
"""Held-back events that a ranker is trained on in a round."""
RANKED_SECONDS = 0.008
"""Seconds of one of them, or of a validation query, on the machine of ``Costs``: its candidates,
their features and all trainings, with experts and on impressions too."""
DOMAIN_ITEMS, NUM_DOMAINS = 50, 3
"""Items from which a domain gets an adapter, and domains that do."""
LEAST_SECONDS = 10.0
"""Seconds of a training, at least."""
NO_SEQUENCE = "there is no sequence model"
LEAST_SHARE, LEAST_REFIT, LEAST_LONGER = 0.5, 0.25, 0.75
"""Shares of a training below which it is not tried: of any, of the retrievers that are refitted for
the ranker, and of twice the passes."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One part that may be added."""

    name: str
    what: str
    choices: Table
    """Over those of the round before."""
    seconds: Mapping[str, float]
    """Estimated seconds of the stages that change; others that follow take what they took."""
    trained: float = 0.0
    """Those of the seconds that a shorter training has less of."""
    shorter: Callable[[float], Table] = lambda _: {}
    """Choices by which this share of ``trained`` is taken at most."""
    least: float = LEAST_SHARE

    def share(self, total: float, left: float) -> float:
        """Return the share of its training that fits, with all of its stages, or else 0."""
        spare = left / SLACK - (total - self.trained)
        share = min(1.0, spare / max(self.trained, 1e-9))
        return share if share >= self.least else 0.0


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
    trained = sum(map(done.took, ("fit_baselines", "train_two_tower", "train_sequence")))
    ranked = RANKED_SECONDS * (queries + done.rows("fit_blend"))
    return Candidate(
        name="ranker",
        what=f"a network of crosses and experts, {queries:,} held-back events",
        choices=choices,
        seconds={"train_ranker": trained + done.costs.slower * ranked},
        trained=trained,
        shorter=lambda share: {"ranker_training": {"refit_share": round(share, 2)}},
        least=LEAST_REFIT,
    )


def further_member(done: Measured, *, name: str, kind: str) -> Candidate | str:
    """Add an encoder of one kind of blocks to the sequence model."""
    model = done.config.sequence
    if not done.config.sequence_training.enabled:
        return NO_SEQUENCE
    if set_value(done.user, SEQUENCE.section) is not None:
        return "[sequence] is set"
    number = model.num_members
    grows = (number + 1) / number
    choices = {
        "embedding_dim": round(grows * model.embedding_dim),
        "num_members": number + 1,
        "member_blocks": [*(model.blocks_of(place) for place in range(number)), kind],
    }
    what = f"{number + 1} encoders, the last of {kind} blocks"
    return refitted(name, what, done, grows, {SEQUENCE.section: choices})


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
    one = refitted("longer training", what, done, 2.0, {SEQUENCE.training: choices})
    return replace(one, least=LEAST_LONGER)


def refitted(name: str, what: str, done: Measured, grows: float, choices: Table) -> Candidate:
    """Train the sequence model in so many times the seconds that it took."""
    trained, refit = grows * done.took("train_sequence"), done.refit_seconds(SEQUENCE.name)
    new_refit = grows * refit
    seconds = {"train_sequence": trained, "refit": done.took("refit") - refit + new_refit}
    # A refit from the beginning takes as many passes.
    whole = trained + (new_refit if done.config.sequence_training.refit_epochs is None else 0.0)

    def shorter(share: float) -> Table:
        limit = max(LEAST_SECONDS, round(SLACK * share * trained, 1))
        return {SEQUENCE.training: {"max_seconds": limit}}

    return Candidate(
        name=name, what=what, choices=choices, seconds=seconds, trained=whole, shorter=shorter
    )


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
    "further member": partial(further_member, name="further member", kind="convolution"),
    "ranker": ranker,
    "adapters": adapters,
    "longer training": longer_training,
    "hstu member": partial(further_member, name="hstu member", kind="hstu"),
    "second seed": partial(further_member, name="second seed", kind="attention"),
}
"""In the order in which they are tried; each returns why it does not apply."""
