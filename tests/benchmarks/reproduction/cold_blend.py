"""Blend lists that hold cold items, with weights learned on validation's own cold items.

Each set of weights is measured on warm items too, so that neither is bought with the other unseen.
Counts are the events of each item that the models were fitted on; a cold item has none.

    cold only     learned on cold queries; every item is cold, so there is nothing to count
    oracle-cold   learned on as many cold queries as warm ones; items without events have weights
                  of their own, since the oracle names them
    blind         learned on as many cold queries as warm ones, but reads no counts
    with counts   the blend that is served: learned on warm queries alone, reads counts, and gives
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
from recsys.evaluation.ranking import distinct_targets, list_ranks
from recsys.fitting.blend import ProfileBlend, learned_blend
from recsys.fitting.queries import EvaluationQueries, RankedQueries
from recsys.fitting.source_lists import SourceLists
from recsys.retrieval.blend.config import BlendConfig
from recsys.retrieval.sources import joined_lists
from tests.benchmarks.recipes.fit import Experiment

Key = tuple[str, str]
"""Setting and split."""
RankedSettings = dict[Key, RankedQueries]
NUM_KEPT = 100
"""Places of a blended list that are measured; metrics read 50."""
NO_EVENTS_BELOW = 1.0
"""Items with fewer events are a kind of their own."""


class Plan(NamedTuple):
    """One set of weights: what it is learned on and what is measured with it."""

    cold: str
    """Setting of cold queries."""
    warm: str | None
    """Setting of warm ones."""
    names: tuple[str, ...]
    """What the lists of ``cold`` and ``warm`` are called once merged."""
    learns_on: tuple[str, ...]
    """Settings of the queries that weights are learned on, in equal numbers."""
    config: Callable[[BlendConfig], BlendConfig]
    """What the plan makes of the recipe's settings."""
    reads_counts: bool


def without_counts(config: BlendConfig) -> BlendConfig:
    """Remove what tells new items from old."""
    return replace(config, item_bounds=(), new_item_odds=1.0)


def with_weights_for_new(config: BlendConfig) -> BlendConfig:
    """Give items without events weights of their own, learned on cold queries."""
    bounds = tuple(sorted({NO_EVENTS_BELOW, *config.item_bounds}))
    return replace(config, item_bounds=bounds, new_item_odds=1.0)


def as_served(config: BlendConfig) -> BlendConfig:
    """Leave settings as they are."""
    return config


PLANS = (
    Plan("cold only", None, ("cold only",), ("cold only",), without_counts, reads_counts=False),
    Plan(
        cold="oracle-cold",
        warm="oracle-cold warm",
        names=("oracle-cold", "oracle-cold warm"),
        learns_on=("oracle-cold", "oracle-cold warm"),
        config=with_weights_for_new,
        reads_counts=True,
    ),
    Plan(
        cold="blind",
        warm="blind warm",
        names=("blind", "blind warm"),
        learns_on=("blind", "blind warm"),
        config=without_counts,
        reads_counts=False,
    ),
    Plan(
        cold="blind",
        warm="blind warm",
        names=("with counts", "with counts warm"),
        learns_on=("blind warm",),
        config=as_served,
        reads_counts=True,
    ),
)


def blended(
    ranked: Mapping[str, RankedSettings],
    queries: Mapping[Key, EvaluationQueries],
    experiment: Experiment,
) -> RankedSettings:
    """Learn each plan's weights on validation and merge the lists of every split.

    Args:
        ranked: Each source's lists by setting and split.
        queries: By setting and split.
        experiment: Whose recipe.
    """
    num_rows = next(iter(queries.values())).num_item_rows
    counts = experiment.item_counts()
    counts = torch.cat([counts, counts.new_zeros(num_rows - len(counts))])
    merged: RankedSettings = {}
    for plan in PLANS:
        read = counts if plan.reads_counts else torch.zeros_like(counts)
        examples = {
            key: SourceLists.of_queries(lists_of_setting(ranked, key), one, read, experiment.seed)
            for key, one in queries.items()
            if key[0] in (plan.cold, plan.warm, *plan.learns_on)
        }
        learned_on = joined(equally([examples[name, "validation"] for name in plan.learns_on]))
        config = plan.config(experiment.recipe.blend)
        blend = learned_blend(learned_on, config, experiment.device)
        for key, part in examples.items():
            if key[0] in (plan.cold, plan.warm):
                whole = ProfileBlend.unlearned(blend)
                top = whole.merged(part, NUM_KEPT, device=experiment.device)
                ranks = list_ranks(top.item_rows, distinct_targets(part.targets)).values
                merged[plan.names[key[0] == plan.warm], key[1]] = RankedQueries(top, ranks)
    return merged


def equally(parts: list[SourceLists]) -> list[SourceLists]:
    """Keep as many queries of each as there are of the fewest, evenly spaced."""
    size = min(len(part) for part in parts)
    return [
        part.of(torch.linspace(0, len(part) - 1, size).long(), tuple(part.lists)) for part in parts
    ]


def joined(parts: list[SourceLists]) -> SourceLists:
    """Put queries with one target each below each other."""
    lists = {name: joined_lists([part.lists[name] for part in parts]) for name in parts[0].lists}
    targets: Tensor = torch.cat([part.targets.values for part in parts])
    return SourceLists(
        lists,
        Jagged.one_each(targets),
        torch.cat([part.history_lengths for part in parts]),
        torch.cat([part.folds for part in parts]),
        parts[0].item_counts,
    )


def lists_of_setting(ranked: Mapping[str, RankedSettings], key: Key) -> dict[str, TopK]:
    """Take the lists of every source, by its name in a blend."""
    return {model: found[key].lists for model, found in ranked.items()}
