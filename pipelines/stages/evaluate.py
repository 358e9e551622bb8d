"""Stage evaluate: every model and the served blends on validation and test, full catalogue.

Blends were fitted on validation, so there each half of the users is measured by the weights of the
other half; on test everyone is measured by the served blends.

Writes per split: metrics of each model, their analysis (analysis.json), and one
Parquet file with a row for each user and held-out item: its rank by each model, and each model's
list. A look at a test split goes into the workspace's ledger. A split in which no user has a
held-out event has no metrics and no file, and then there is no analysis.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

import numpy as np

from pipelines.candidates.blends import RANKED, evaluation_queries, load_blends, row_names
from pipelines.candidates.load import load_sources
from pipelines.candidates.rank import NO_HELD_OUT, Blending, evaluate_split
from pipelines.config.run import RunConfig
from pipelines.engine.artifacts import Manifest, digest_of_json, plain, to_json
from pipelines.engine.console import log
from pipelines.engine.stage import StageContext, StageRows
from pipelines.evaluation.analyse import Background, analyse_split, best_single
from pipelines.evaluation.analysis import Analysis, SplitAnalysis, per_user_table
from pipelines.inputs.tensors import read_inputs, split_kind
from pipelines.ranking.artefact import measured_ranker
from recsys.fitting.queries import GIVEN

SPLITS: tuple[Literal["validation", "test"], ...] = ("validation", "test")
LISTED = 20
"""Items of each list that are kept per user."""


def evaluate(context: StageContext) -> StageRows:
    """Measure and analyse all models on both splits."""
    config, features = context.config, context.inputs["build_features"]
    metrics: dict[str, dict[str, dict[str, float]]] = {}
    analyses: dict[str, SplitAnalysis] = {}
    num_users = num_rows = 0
    inputs = read_inputs(features, context.inputs.get("embed_items"))
    sources = load_sources(context, inputs)
    profiles = load_blends(context.inputs["fit_blend"] / GIVEN)
    ranker = measured_ranker(context.inputs["train_ranker"] / GIVEN, inputs.catalogue)
    known = Background.of(inputs, features)
    baseline = ""
    for split in SPLITS:
        if not len(evaluation_queries(inputs, split, config)):
            # An increment has no validation; it chooses nothing.
            if split == "test":
                log.print(f"{split}: {NO_HELD_OUT}", style="yellow", soft_wrap=True)
            metrics[split] = {}
            continue
        blending = Blending.of(profiles, inputs, split, config.seed, ranker)
        results = evaluate_split(sources, inputs, split, config, blending)
        metrics[split] = {name: dict(result.metrics) for name, result in results.items()}
        num_users += next(iter(results.values())).num_users
        table = per_user_table(results, LISTED, context.making)
        table.write_parquet(context.output / f"per_user_{GIVEN}_{split}.parquet")
        num_rows += table.height
        # Validation comes first and chooses; the test split chooses nothing.
        blends = (*row_names(profiles).values(), RANKED)
        baseline = baseline or best_single(results, config.evaluation.primary_metric, blends)
        analyses[split] = analyse_split(results, known, config.evaluation, baseline=baseline)
    if metrics["test"]:
        note_test_look(context, metrics["test"])
    (context.output / "metrics.json").write_text(to_json({GIVEN: metrics}))
    if len(analyses) == len(SPLITS):
        manifest = Manifest.load(features)
        Analysis(
            orders={GIVEN: analyses},
            data_digest="" if manifest is None else manifest.output,
            protocol=describe_protocol(config, split_kind(features)),
            primary_metric=config.evaluation.primary_metric,
        ).save(context.output)
    return StageRows(rows_in=num_users, rows_out=num_rows)


def describe_protocol(config: RunConfig, kind: str) -> str:
    """Describe the protocol in words."""
    lists = "without" if config.evaluation.exclude_history else "with"
    sampled = config.evaluation.max_users
    users = "all users" if sampled is None else f"at most {sampled} users"
    return f"{kind}, full catalogue, {users}, lists {lists} the user's history"


def note_test_look(context: StageContext, metrics: Mapping[str, Mapping[str, float]]) -> None:
    """Record that the test split was seen, by what, and what came out."""
    context.workspace.append_to_ledger(
        {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "stage": "evaluate",
            "split": "test",
            "tie_order": GIVEN,
            "making": context.making,
            "config": digest_of_json(plain(context.config)),
            "ndcg@10": {name: values.get("ndcg@10", np.nan) for name, values in metrics.items()},
        }
    )
