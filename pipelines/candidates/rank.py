"""Rank the full catalogue for held-out events by every model and every blend.

Axes: B queries of a batch, N item rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Literal, NamedTuple

from torch import Tensor

from pipelines.candidates.blends import RANKED, evaluation_queries, row_names
from pipelines.config.run import RunConfig
from recsys.data.batch import JaggedBatch
from recsys.data.top_k import TopK, select_top_k
from recsys.evaluation.ranking import RankingResult, evaluate_lists, joined_results
from recsys.fitting.blend import ProfileBlend
from recsys.fitting.queries import ModelInputs
from recsys.fitting.source_lists import fold_of_users, known_demand
from recsys.retrieval.sources import Source, eligible_scores, lists_of, rank_by_all
from serving.bundle.manifest import Profile
from serving.bundle.ranker import LoadedRanker

NO_HELD_OUT = (
    "no user has a held-out event, so nothing is measured; users need 3 or more events for "
    "leave_one_out, and global_time needs events after its cut (build_features/report.json says "
    "what was filtered out)"
)


class Blending(NamedTuple):
    """Blends that merge the lists of a split."""

    profiles: Mapping[Profile, ProfileBlend]
    item_counts: Tensor
    """Events of each item that the sources were fitted on, [N]."""
    folds: Tensor | None
    """Half of each user row where the weights were fitted on this split, [num_user_rows]."""
    ranker: LoadedRanker | None = None
    """Ranker of the first places of profile ``fast``, if it was trained."""

    @classmethod
    def of(
        cls,
        profiles: Mapping[Profile, ProfileBlend],
        inputs: ModelInputs,
        split: Literal["validation", "test"],
        seed: int,
        ranker: LoadedRanker | None = None,
    ) -> Blending:
        """Prepare a split; on validation each half is measured by the weights of the other.

        Weights may be of an earlier run, which an increment continues: what they know of items'
        demand is as of this one's events.
        """
        counts, demand = inputs.item_counts("train"), known_demand(inputs, "train")
        halves = fold_of_users(inputs.sequences.num_user_rows, seed)
        return cls(
            {profile: blend.with_demand(demand) for profile, blend in profiles.items()},
            counts,
            halves if split == "validation" else None,
            None if ranker is None else ranker.with_demand(demand),
        )

    def merged(self, queries: JaggedBatch, lists: dict[str, TopK]) -> dict[str, TopK]:
        """Make each list that could be served, by row of the metrics."""
        names = row_names(self.profiles)
        folds = None if self.folds is None else self.folds[queries["user"].values]
        lengths = queries["history"].lengths()
        tops = {
            names[profile]: blend.lists(lists, lengths, self.item_counts, folds)
            for profile, blend in self.profiles.items()
        }
        if self.ranker is not None:
            tops[RANKED] = self.ranker.reranked(lists, queries.positive, self.item_counts)
        return tops


def evaluate_split(
    sources: Mapping[str, Source],
    inputs: ModelInputs,
    split: Literal["validation", "test"],
    config: RunConfig,
    blending: Blending | None = None,
) -> dict[str, RankingResult]:
    """Rank the full catalogue for the split's users by each model and by each merged list.

    Every model ranks once; its list goes into the blends.
    """
    queries = evaluation_queries(inputs, split, config)
    if config.evaluation.max_users is not None:
        queries = queries.sample(config.evaluation.max_users, config.seed)
    if len(queries) == 0:
        raise ValueError(f"{split}: {NO_HELD_OUT}")
    measured, length = config.evaluation, max(config.evaluation.ks)
    parts: dict[str, list[RankingResult]] = defaultdict(list)
    for batch in queries.batches():
        targets = queries.held_out.targets.take(batch.rows)
        rankings = rank_by_all(sources, batch.queries, batch.allowed, queries.list_length)
        is_empty = bool((batch.queries["history"].lengths() == 0).any())
        for name, (lists, scores) in rankings.items():
            known = None if scores is None else eligible_scores(scores, batch.allowed)
            # Sources list nothing for an empty history, but what they score is measured.
            if known is not None and is_empty:
                lists = select_top_k(known, length)
            parts[name].append(evaluate_lists(lists, known, batch.queries, targets, measured))
        merged = {} if blending is None else blending.merged(batch.queries, lists_of(rankings))
        for name, lists in merged.items():
            parts[name].append(evaluate_lists(lists, None, batch.queries, targets, measured))
    return {name: joined_results(found, measured) for name, found in parts.items()}
