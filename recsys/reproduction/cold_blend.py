"""Blend lists that hold cold items, with weights learned on validation's own cold items.

The weights are learned on questions whose answers are cold and on questions whose answers are
warm, so that neither is bought with the other, and what the same weights give on warm items stands
beside what they give on cold ones. Items without an event of what the models were fitted on have
weights of their own where the blend may read counts:

    cold alone   may not: every item is cold
    told         may, since the system is told; as many cold questions as warm ones
    not told     may not; as many cold questions as warm ones
    counted      may, as what is served does, and nobody tells it what is asked about: cold
                 questions in the share that events of cold items have of all events

Axes: U queries, k list length.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from recsys.data.batch import Jagged
from recsys.data.top_k import TopK
from recsys.evaluation.ranking import list_ranks
from recsys.reproduction.fitting import Experiment
from recsys.reproduction.ranking import Question, Ranked
from recsys.reproduction.recipe import SOURCES
from recsys.reproduction.run import blended_in_parts, learned
from recsys.retrieval.learned_blend import LearnedBlend, LearnedBlendConfig

Found = dict[tuple[str, str], Ranked]
"""By setting and split."""
UNMET = 1.0
"""Items with fewer events are a kind of their own."""


class Plan(NamedTuple):
    """One set of weights: what it is learned on and what is measured with it."""

    cold: str
    """Setting whose questions have cold answers."""
    warm: str | None
    """Setting whose questions have warm ones."""
    named: tuple[str, ...]
    """What the lists of ``cold`` and ``warm`` are called once merged."""
    reads_counts: bool
    cold_share: float | None = 0.5
    """Of the questions that weights are learned on; None is that of the data."""


PLANS = (
    Plan("cold alone", None, ("cold alone",), reads_counts=False),
    Plan("told", "told warm", ("told", "told warm"), reads_counts=True),
    Plan("not told", "warm", ("not told", "warm"), reads_counts=False),
    Plan("not told", "warm", ("counted", "counted warm"), reads_counts=True, cold_share=None),
)


class Learnable(NamedTuple):
    """Lists with their targets, one each."""

    lists: Mapping[str, TopK]
    targets: Tensor
    """[U]"""
    lengths: Tensor
    """[U]"""

    @classmethod
    def of(
        cls,
        found: Mapping[str, Found],
        questions: Mapping[tuple[str, str], Question],
        key: tuple[str, str],
    ) -> Learnable:
        """Gather one setting's lists and targets."""
        question = questions[key]
        return cls(
            lists_of(found, key), question.held_out.targets.values, question.history_lengths()
        )

    def first(self, size: int) -> Learnable:
        """Keep so many queries, evenly spaced."""
        rows = torch.linspace(0, len(self.targets) - 1, size).long()
        lists = {
            name: TopK(top.scores[rows], top.item_rows[rows]) for name, top in self.lists.items()
        }
        return Learnable(lists, self.targets[rows], self.lengths[rows])


def blended(
    found: Mapping[str, Found],
    questions: Mapping[tuple[str, str], Question],
    experiment: Experiment,
    natural_share: float,
) -> Found:
    """Learn each plan's weights on validation and merge the lists of every split.

    Args:
        found: Each source's lists by setting and split.
        questions: The same of what was asked.
        natural_share: Events of validation's cold items, of all events.
    """
    num_rows = next(iter(questions.values())).num_item_rows
    counts = experiment.item_counts()
    counts = torch.cat([counts, counts.new_zeros(num_rows - len(counts))])
    device, merged = experiment.device, Found()
    for plan in PLANS:
        config = plan_config(experiment.recipe.blend, plan)
        shown = counts if plan.reads_counts else torch.zeros_like(counts)
        blend = learned_of(plan, found, questions, (shown, config, natural_share), experiment)
        for key, question in questions.items():
            if key[0] not in (plan.cold, plan.warm):
                continue
            lengths = question.history_lengths()
            top = blended_in_parts(blend, lists_of(found, key), lengths, shown, device)
            ranks = list_ranks(top.item_rows, question.held_out.targets).values
            name = plan.named[0 if key[0] == plan.cold else 1]
            merged[name, key[1]] = Ranked(top, ranks)
    return merged


def learned_of(
    plan: Plan,
    found: Mapping[str, Found],
    questions: Mapping[tuple[str, str], Question],
    reading: tuple[Tensor, LearnedBlendConfig, float],
    experiment: Experiment,
) -> LearnedBlend:
    """Learn a plan's weights on validation."""
    counts, config, natural_share = reading
    parts = [Learnable.of(found, questions, (plan.cold, "validation"))]
    if plan.warm is not None:
        parts.append(Learnable.of(found, questions, (plan.warm, "validation")))
        share = natural_share if plan.cold_share is None else plan.cold_share
        parts = mixed(parts[0], parts[1], share)
    lists = {name: joined([part.lists[name] for part in parts]) for name in parts[0].lists}
    targets = Jagged.one_each(torch.cat([part.targets for part in parts]))
    lengths = torch.cat([part.lengths for part in parts])
    return learned(lists, targets, lengths, counts, config, experiment.device)


def mixed(cold: Learnable, warm: Learnable, cold_share: float) -> list[Learnable]:
    """Keep as many questions of both as there are in the share that the cold ones should have."""
    total = min(len(cold.targets) / cold_share, len(warm.targets) / (1 - cold_share))
    num_cold = max(1, min(len(cold.targets), round(total * cold_share)))
    num_warm = max(1, min(len(warm.targets), round(total * (1 - cold_share))))
    return [cold.first(num_cold), warm.first(num_warm)]


def plan_config(config: LearnedBlendConfig, plan: Plan) -> LearnedBlendConfig:
    """Give unmet items weights of their own, or take away what tells new items from old."""
    if not plan.reads_counts:
        return replace(config, item_bounds=(), new_item_odds=1.0)
    config = replace(config, item_bounds=tuple(sorted({UNMET, *config.item_bounds})))
    # Weights of another share than that of the data have their own odds of new items.
    return config if plan.cold_share is None else replace(config, new_item_odds=1.0)


def lists_of(found: Mapping[str, Found], key: tuple[str, str]) -> dict[str, TopK]:
    """Take every source's lists, by its name in a blend."""
    return {SOURCES.get(name, name): part[key].lists for name, part in found.items()}


def joined(parts: list[TopK]) -> TopK:
    """Put lists of equal length below each other."""
    return TopK(
        torch.cat([part.scores for part in parts]), torch.cat([part.item_rows for part in parts])
    )
