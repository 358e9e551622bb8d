"""Stage evaluate: every model and the served blends on validation and test, full catalogue.

Blends were fitted on validation, so there each half of the users is measured by the weights of the
other half; on test everyone is measured by the served blends.

Writes per tie order and split: metrics of each model, their analysis (analysis.json), and one
Parquet file with a row for each user and held-out item: its rank by each model, and each model's
list. A look at a test split goes into the workspace's ledger. A split in which no user has a
held-out event has no metrics and no file, and then there is no analysis.

Axes: B queries of a batch, N item rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import polars as pl
import torch
from torch import Tensor

from pipelines.candidates.blends import evaluation_queries, load_blends, row_names
from pipelines.candidates.load import load_sources
from pipelines.config.run import RunConfig
from pipelines.engine.artifacts import Manifest, digest_of_json, plain, to_json
from pipelines.engine.console import log
from pipelines.engine.stage import StageContext, StageRows
from pipelines.evaluation.analyse import Background, analyse_split, best_single
from pipelines.evaluation.analysis import Analysis, SplitAnalysis
from pipelines.inputs.tensors import read_inputs, split_kind, tie_orders
from pipelines.ranking.artefact import RANKED, measured_ranker
from pipelines.semantic_ids.artefact import read_item_codes
from recsys.data.batch import JaggedBatch
from recsys.data.dataset import Sequences
from recsys.data.top_k import TopK, select_top_k
from recsys.evaluation.ranking import RankingResult, evaluate_lists, joined_results
from recsys.fitting.blend import ProfileBlend, fold_of_users, known_demand
from recsys.fitting.queries import ModelInputs
from recsys.models.names import GENERATIVE
from recsys.retrieval.sources import Source, eligible_scores, lists_of, rank_by_all
from recsys.semantic_ids.quality import invalid_share
from serving.bundle.manifest import Profile
from serving.bundle.ranker import LoadedRanker

SPLITS: tuple[Literal["validation", "test"], ...] = ("validation", "test")
NO_HELD_OUT = (
    "no user has a held-out event, so nothing is measured; users need 3 or more events for "
    "leave_one_out, and global_time needs events after its cut (build_features/report.json says "
    "what was filtered out)"
)

LISTED = 20
"""Items of each list that are kept per user."""


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
            tops[RANKED] = self.ranker.reranked(lists, queries, self.item_counts)
        return tops


def per_user_table(results: Mapping[str, RankingResult], listed: int, run: str) -> pl.DataFrame:
    """Build a table with one row for each user and held-out item."""
    first = next(iter(results.values()))
    queries = first.targets.segments().numpy()
    columns: dict[str, pl.Series] = {
        "user_row": pl.Series(first.user_rows.numpy()[queries]),
        "item_row": pl.Series(first.targets.values.numpy()),
    }
    for name, result in results.items():
        ranks = result.ranks.values.numpy()
        columns[f"rank_{name}"] = pl.Series(ranks).replace(0, None)
    for name, result in results.items():
        lists = result.top_k.item_rows[:, :listed].numpy()[queries]  # [M, K], -1 where short
        columns[f"top_k_{name}"] = (
            pl.Series(lists, dtype=pl.Array(pl.Int64, lists.shape[1]))
            .arr.to_list()
            .list.eval(pl.element().filter(pl.element() >= 0))
        )
    table = pl.DataFrame(columns).with_columns(pl.lit(run).alias("run"))
    return table.sort("user_row", "item_row")


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


def evaluate(context: StageContext) -> StageRows:
    """Measure and analyse all models on both splits in each tie order."""
    config, features = context.config, context.inputs["build_features"]
    metrics: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    analyses: dict[str, dict[str, SplitAnalysis]] = {}
    data_digest = features_digest(features)
    num_users = num_rows = 0
    for order in tie_orders(features):
        inputs = read_inputs(features, context.inputs.get("embed_items"), order)
        sources = load_sources(context, inputs, order)
        profiles = load_blends(context.inputs["fit_blend"] / order)
        trained = context.inputs["train_ranker"] / order
        ranker = measured_ranker(trained, inputs.catalogue)
        known = Background.of(inputs, features, data_digest)
        baseline = ""
        metrics[order], analyses[order] = {}, {}
        for split in SPLITS:
            if not len(evaluation_queries(inputs, split, config)):
                # An increment has no validation; it chooses nothing.
                if split == "test":
                    log.print(f"{split} ({order}): {NO_HELD_OUT}", style="yellow", soft_wrap=True)
                metrics[order][split] = {}
                continue
            blending = Blending.of(profiles, inputs, split, config.seed, ranker)
            results = evaluate_split(sources, inputs, split, config, blending)
            metrics[order][split] = {name: dict(result.metrics) for name, result in results.items()}
            if GENERATIVE.name in results:
                codes = read_item_codes(context.inputs["build_semantic_ids"], order)
                rate = invalid_share(results[GENERATIVE.name].top_k.item_rows, codes.codes)
                metrics[order][split][GENERATIVE.name]["invalid_id_rate"] = rate or 0.0
            num_users += next(iter(results.values())).num_users
            table = per_user_table(results, LISTED, context.making)
            table.write_parquet(context.output / f"per_user_{order}_{split}.parquet")
            num_rows += table.height
            # Validation comes first and chooses; the test split chooses nothing.
            blends = (*row_names(profiles).values(), RANKED)
            baseline = baseline or best_single(results, config.evaluation.primary_metric, blends)
            if config.evaluation.num_resamples:
                analyses[order][split] = analyse_split(
                    results,
                    known,
                    config.evaluation,
                    lengths=lengths_before(inputs.sequences, split, results),
                    baseline=baseline,
                    seed=config.seed,
                )
        if metrics[order]["test"]:
            note_test_look(context, order, metrics[order]["test"])
    (context.output / "metrics.json").write_text(to_json(metrics))
    if config.evaluation.num_resamples and all(
        len(one) == len(SPLITS) for one in analyses.values()
    ):
        Analysis(
            orders=analyses,
            data_digest=data_digest,
            protocol=describe_protocol(config, split_kind(features)),
            primary_metric=config.evaluation.primary_metric,
        ).save(context.output)
    return StageRows(rows_in=num_users, rows_out=num_rows)


def lengths_before(
    sequences: Sequences,
    split: Literal["validation", "test"],
    results: Mapping[str, RankingResult],
) -> Tensor:
    """Count the events of each measured user before the split, [U]."""
    ends = sequences.train_end if split == "validation" else sequences.validation_end
    lengths = np.asarray(ends) - np.asarray(sequences.offsets[:-1])
    return torch.from_numpy(lengths)[next(iter(results.values())).user_rows]


def features_digest(features: Path) -> str:
    """Return the digest of the features artefact, by which runs are comparable."""
    manifest = Manifest.load(features)
    return "" if manifest is None else manifest.output


def describe_protocol(config: RunConfig, kind: str) -> str:
    """Describe the protocol in words."""
    lists = "without" if config.evaluation.exclude_history else "with"
    sampled = config.evaluation.max_users
    users = "all users" if sampled is None else f"at most {sampled} users"
    return f"{kind}, full catalogue, {users}, lists {lists} the user's history"


def note_test_look(
    context: StageContext, order: str, metrics: Mapping[str, Mapping[str, float]]
) -> None:
    """Record that the test split was seen, by what, and what came out."""
    context.workspace.append_to_ledger(
        {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "stage": "evaluate",
            "split": "test",
            "tie_order": order,
            "making": context.making,
            "config": digest_of_json(plain(context.config)),
            "ndcg@10": {name: values.get("ndcg@10", np.nan) for name, values in metrics.items()},
        }
    )
