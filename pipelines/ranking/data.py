"""Examples that rankers are trained and judged on.

Trained on held-back train events, with candidates of retrievers refitted without them, merged by
weights learned from these events. Judged on validation, with the candidates that are served: those
of the served blend, each half of the users by the weights of the other.

Axes: N item rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from pipelines.candidates.blends import source_lists
from pipelines.config.run import RunConfig
from pipelines.engine.stage import StageContext
from pipelines.inputs.tensors import HeldOut, split_kind
from pipelines.ranking.examples import (
    candidate_builder,
    ranking_examples,
    read_outcomes,
    shown_candidates,
)
from pipelines.ranking.fit import has_both_classes
from pipelines.ranking.out_of_sample import hold_back, refitted_sources
from recsys.fitting.blend import ProfileBlend, learned_blend
from recsys.fitting.queries import ModelInputs
from recsys.fitting.source_lists import SourceLists, known_demand
from recsys.retrieval.blend.candidate_features import CandidateBuilder
from recsys.retrieval.sources import Source, behaviour_vectors
from recsys.training.ranking_examples import RankingExamples, choose_tasks


class TooLittleDataError(Exception):
    """No ranker can be trained; says why."""


class RankingData(NamedTuple):
    """Examples that rankers are trained and judged on."""

    tasks: tuple[str, ...]
    tasks_reason: str
    builder: CandidateBuilder
    """Builder for validation, with features fitted on train."""
    item_counts: Tensor
    """Events that the refitted retrievers were fitted on, [N]."""
    train: RankingExamples
    shown: RankingExamples | None
    """Those of ``train`` with shown items that were not chosen as negatives; None without any."""
    num_shown: int
    """Queries of them whose list was shown."""
    validation: RankingExamples
    validation_lists: SourceLists
    """Lists of every source, as the blend merges them."""

    def served_builder(
        self, inputs: ModelInputs, sources: Mapping[str, Source], config: RunConfig
    ) -> CandidateBuilder:
        """Make the builder that a bundle carries, with features fitted on every event."""
        everything, vectors = inputs.sequences.offsets[1:], behaviour_vectors(sources)
        settings = config.ranker_training
        return candidate_builder(self.builder.blend, inputs, everything, vectors, settings)


def ranking_data(
    context: StageContext, inputs: ModelInputs, sources: Mapping[str, Source], served: ProfileBlend
) -> RankingData:
    """Build the examples of rankers that correct a served blend."""
    config, features = context.config, context.inputs["build_features"]
    by_time = split_kind(features) == "global_time"
    held_back = hold_back(inputs, config.ranker_training, config.seed, by_time=by_time)
    check_enough(len(held_back.held_out.positions), config)
    refitted = refitted_sources(context, held_back, tuple(sources))
    counts = held_back.inputs.item_counts("train")
    lists = source_lists(refitted, inputs, held_back.held_out, held_back.inputs, config)
    check_enough(lists.num_found(), config)
    lists = lists if served.served.demand is not None else replace(lists, demand=None)
    blend, vectors = learned_blend(lists, config.blend), behaviour_vectors(refitted)
    builder = candidate_builder(blend, inputs, held_back.ends, vectors, config.ranker_training)

    outcomes = read_outcomes(features, inputs, held_back.held_out)
    like_from = config.ranker_training.like_from
    tasks, reason = choose_tasks(outcomes, like_from)
    train = ranking_examples(builder, inputs, held_back.held_out, lists, outcomes, tasks, like_from)
    tasks, reason, train = calibratable(tasks, reason, train, config)
    rows = train.candidates.item_rows
    refused = shown_candidates(features, inputs, held_back.held_out, rows)
    num_shown = 0 if refused is None else int(refused[train.found()].any(1).sum())

    train_end, vectors = inputs.sequences.train_end, behaviour_vectors(sources)
    served = served.with_demand(known_demand(inputs, "train"))
    builder = candidate_builder(served.served, inputs, train_end, vectors, config.ranker_training)
    held_out = HeldOut.of(inputs.sequences, "validation")
    held_out = held_out.sample(config.blend.max_queries, config.seed)
    lists = source_lists(sources, inputs, held_out, inputs, config)
    outcomes = read_outcomes(features, inputs, held_out)
    halves = [
        ranking_examples(
            replace(builder, blend=fold), inputs, held_out, lists, outcomes, tasks, like_from
        )
        for fold in served.folds
    ]
    return RankingData(
        tasks=tasks,
        tasks_reason=reason,
        builder=builder,
        item_counts=counts,
        train=train,
        shown=train.among(refused) if refused is not None and num_shown else None,
        num_shown=num_shown,
        validation=halves[0].with_half(lists.folds == 1, halves[1]),
        # A ranker ranks neither visits nor absences, so the blend's order is measured without.
        validation_lists=replace(lists, days_away=None),
    )


def check_enough(found: int, config: RunConfig) -> None:
    """Refuse fewer found events than ``ranker_training.min_found``."""
    least = config.ranker_training.min_found
    if found < least:
        raise TooLittleDataError(
            f"{found} of the latest train events have their item in any list, fewer than "
            f"ranker_training.min_found = {least}"
        )


def calibratable(
    tasks: tuple[str, ...], reason: str, examples: RankingExamples, config: RunConfig
) -> tuple[tuple[str, ...], str, RankingExamples]:
    """Leave out tasks with one class among the queries that calibrate, but for the first task."""
    both = has_both_classes(examples, config)
    kept = [place for place in range(len(tasks)) if place == 0 or both[place]]
    for place, name in enumerate(tasks):
        if place not in kept:
            reason += (
                f"; {name} has one class only among the users that calibrate, so it is left out"
            )
    names = tuple(tasks[place] for place in kept)
    return names, reason, examples._replace(labels=examples.labels[:, :, kept])
