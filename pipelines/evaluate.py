"""Stage evaluate: every model and the served blend on validation and test, full catalogue.

Writes per tie order and split: metrics of each model, their analysis (analysis.json), and one
Parquet file with a row for each user and held-out item: its rank by each model, and each model's
list. A look at a test split goes into the workspace's ledger.

Axes: B queries of a batch, N item rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
import torch
from torch import Tensor

from pipelines.analyse_results import Background, analyse_split, best_single
from pipelines.analysis import Analysis, SplitAnalysis
from pipelines.artifacts import Manifest, digest_of_json, to_json
from pipelines.blended_scores import BlendedScores
from pipelines.config import RunConfig
from pipelines.config_file import plain
from pipelines.model_inputs import HeldOut, ModelInputs, queries_per_batch, tie_orders
from pipelines.stage import StageContext, StageRows
from recsys.data.batch import Jagged, JaggedBatch
from recsys.data.dataset import Sequences
from recsys.evaluation.ranking import RankingResult, evaluate_ranking
from recsys.models.item_to_item import ItemToItem
from recsys.models.popularity import Popularity
from recsys.models.sequence import SequenceModel
from recsys.models.two_tower import TwoTower
from serving.surfaces import HOME

Score = Callable[[JaggedBatch], Tensor]
SPLITS: tuple[Literal["validation", "test"], ...] = ("validation", "test")
BLEND = "blend"


def load_scores(context: StageContext, inputs: ModelInputs, order: str) -> dict[str, Score]:
    """Load the models fit on train; each scores all items for a batch, [B, N]."""
    baselines = context.inputs["fit_baselines"] / order
    two_tower = TwoTower.load(
        context.inputs["train_two_tower"] / order / "two_tower", inputs.catalogue
    )
    models: dict[str, Score] = {
        "popularity": Popularity.load(baselines / "popularity").score,
        "item_to_item": ItemToItem.load(baselines / "item_to_item").score,
        "two_tower": torch.no_grad()(two_tower.score),
    }
    blend = BlendedScores(models)
    trained = context.inputs["train_sequence"] / order / "sequence"
    if trained.exists():
        # Measured beside the others; nothing serves it, so it is no part of the blend.
        models["sequence"] = SequenceModel.load(trained, inputs.catalogue).score
    return {**models, BLEND: blend}


def batches(inputs: ModelInputs, held_out: HeldOut, config: RunConfig) -> Iterator[JaggedBatch]:
    """Build the split's queries; ``seen`` carries the whole history, which no list repeats."""
    size = queries_per_batch(inputs, config)
    for begin in range(0, len(held_out.positions), size):
        positions = held_out.positions[begin : begin + size]
        queries = inputs.queries(positions, max_history=HOME.max_history)
        rows = torch.arange(begin, begin + len(positions))
        seen = held_out.seen.take(rows)
        if not config.evaluation.exclude_history:
            seen = Jagged(seen.values[:0], torch.zeros_like(seen.offsets))
        yield JaggedBatch({**queries.features, "seen": seen})


def per_user_table(results: Mapping[str, RankingResult], listed: int, run: str) -> pl.DataFrame:
    """Lay out one row for each user and held-out item.

    Args:
        results: By model.
        listed: Items of each list to keep.
        run: Digest of what the results were made from.

    Returns:
        user_row, item_row (the held-out one), ``rank_<model>`` from 1 (null where the model
        cannot recommend it), ``top_k_<model>`` item rows best first, run.
    """
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
    scores: Mapping[str, Score],
    inputs: ModelInputs,
    split: Literal["validation", "test"],
    config: RunConfig,
) -> dict[str, RankingResult]:
    """Rank the full catalogue for the split's users by each model."""
    held_out = HeldOut.of(inputs.sequences, split)
    if config.evaluation.max_users is not None:
        held_out = held_out.sample(config.evaluation.max_users, config.seed)
    if len(held_out.positions) == 0:
        raise ValueError(
            f"no user has a held-out event in the {split} split; users need 3 or more events "
            "for leave_one_out, and global_time needs events after its cut. Look at "
            "build_features/report.json for what was filtered out"
        )
    exclude = held_out.seen if config.evaluation.exclude_history else None
    return {
        name: evaluate_ranking(
            score,
            batches(inputs, held_out, config),
            held_out.targets,
            config.evaluation,
            exclude=exclude,
        )
        for name, score in scores.items()
    }


def evaluate(context: StageContext) -> StageRows:
    """Measure and analyse all models on both splits in each tie order."""
    config, features = context.config, context.inputs["build_features"]
    metrics: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    analyses: dict[str, dict[str, SplitAnalysis]] = {}
    data_digest = features_digest(features)
    num_users = num_rows = 0
    for order in tie_orders(features):
        inputs = ModelInputs.load(features, context.inputs.get("embed_items"), order)
        scores = load_scores(context, inputs, order)
        known = Background.of(inputs, features, data_digest)
        baseline = ""
        metrics[order], analyses[order] = {}, {}
        for split in SPLITS:
            results = evaluate_split(scores, inputs, split, config)
            metrics[order][split] = {name: result.metrics for name, result in results.items()}
            num_users += next(iter(results.values())).num_users
            table = per_user_table(results, config.evaluation.listed, context.making)
            table.write_parquet(context.output / f"per_user_{order}_{split}.parquet")
            num_rows += table.height
            # Validation comes first and chooses; the test split chooses nothing.
            baseline = baseline or best_single(results, config.evaluation.primary_metric, BLEND)
            if config.evaluation.num_resamples:
                analyses[order][split] = analyse_split(
                    results,
                    known,
                    config.evaluation,
                    lengths=lengths_before(inputs.sequences, split, results),
                    baseline=baseline,
                    seed=config.seed,
                )
        note_test_look(context, order, metrics[order]["test"])
    (context.output / "metrics.json").write_text(to_json(metrics))
    if config.evaluation.num_resamples:
        Analysis(
            orders=analyses,
            data_digest=data_digest,
            protocol=protocol_of(config),
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


def protocol_of(config: RunConfig) -> str:
    """Say in words what was measured on."""
    lists = "without" if config.evaluation.exclude_history else "with"
    sampled = config.evaluation.max_users
    users = "all users" if sampled is None else f"at most {sampled} users"
    return f"{config.splits.kind}, full catalogue, {users}, lists {lists} the user's history"


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
