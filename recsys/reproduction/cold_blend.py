"""Blend lists that hold cold items, with weights learned on validation's own cold items.

What the same weights give on warm items stands beside what they give on cold ones, so that
neither is bought with the other unseen. Counts are the events of each item that the models were
fitted on; a cold item has none.

    cold alone   learned on cold questions; every item is cold, so there is nothing to count
    told         learned on as many cold questions as warm ones; items without events have weights
                 of their own, since the system is told which they are
    not told     learned on as many cold questions as warm ones, but reads no counts
    counted      the blend that is served: learned on warm questions alone, reads counts, and gives
                 items without events the odds of the recipe's ``blend.new_item_odds``

Axes: U queries, k list length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from recsys.retrieval.blend.learned import LearnedBlendConfig

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
    learns_on: tuple[str, ...]
    """Settings of the questions that weights are learned on, in equal numbers."""
    config: Callable[[LearnedBlendConfig], LearnedBlendConfig]
    """What the plan makes of the recipe's settings."""
    reads_counts: bool


def blind(config: LearnedBlendConfig) -> LearnedBlendConfig:
    """Take away what tells new items from old."""
    return replace(config, item_bounds=(), new_item_odds=1.0)


def told_apart(config: LearnedBlendConfig) -> LearnedBlendConfig:
    """Give items without events weights of their own, which cold questions teach."""
    bounds = tuple(sorted({UNMET, *config.item_bounds}))
    return replace(config, item_bounds=bounds, new_item_odds=1.0)


def as_served(config: LearnedBlendConfig) -> LearnedBlendConfig:
    """Leave settings as they are."""
    return config


PLANS = (
    Plan("cold alone", None, ("cold alone",), ("cold alone",), blind, reads_counts=False),
    Plan("told", "told warm", ("told", "told warm"), ("told", "told warm"), told_apart, True),
    Plan("not told", "warm", ("not told", "warm"), ("not told", "warm"), blind, False),
    Plan("not told", "warm", ("counted", "counted warm"), ("warm",), as_served, True),
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
) -> Found:
    """Learn each plan's weights on validation and merge the lists of every split.

    Args:
        found: Each source's lists by setting and split.
        questions: The same of what was asked.
    """
    num_rows = next(iter(questions.values())).num_item_rows
    counts = experiment.item_counts()
    counts = torch.cat([counts, counts.new_zeros(num_rows - len(counts))])
    device = experiment.device
    merged: Found = {}
    for plan in PLANS:
        read = counts if plan.reads_counts else torch.zeros_like(counts)
        parts = equally(
            [Learnable.of(found, questions, (name, "validation")) for name in plan.learns_on]
        )
        blend = learned(
            {name: joined([part.lists[name] for part in parts]) for name in parts[0].lists},
            Jagged.one_each(torch.cat([part.targets for part in parts])),
            torch.cat([part.lengths for part in parts]),
            read,
            plan.config(experiment.recipe.blend),
            device,
        )
        for key, question in questions.items():
            if key[0] in (plan.cold, plan.warm):
                lengths = question.history_lengths()
                top = blended_in_parts(blend, lists_of(found, key), lengths, read, device)
                ranks = list_ranks(top.item_rows, question.held_out.targets).values
                merged[plan.named[key[0] == plan.warm], key[1]] = Ranked(top, ranks)
    return merged


def equally(parts: list[Learnable]) -> list[Learnable]:
    """Keep as many questions of each as there are of the fewest."""
    size = min(len(part.targets) for part in parts)
    return [part.first(size) for part in parts]


def lists_of(found: Mapping[str, Found], key: tuple[str, str]) -> dict[str, TopK]:
    """Take every source's lists, by its name in a blend."""
    return {SOURCES.get(name, name): part[key].lists for name, part in found.items()}


def joined(parts: list[TopK]) -> TopK:
    """Put lists of equal length below each other."""
    return TopK(
        torch.cat([part.scores for part in parts]), torch.cat([part.item_rows for part in parts])
    )
