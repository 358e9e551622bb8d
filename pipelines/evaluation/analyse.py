"""Analyse what evaluate measured: intervals, slices, measures beyond accuracy, paired tests.

Popularity, activity and the histories that lists are held against are those of training, the same
for both splits. Scores of these models are no probabilities, so there is no curve of calibration
of scores to draw; the measure is whether a list has its user's mix of categories.

Axes: U users, M targets, N item rows, C category rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import torch
from torch import Tensor

from pipelines.config.run import EvaluationConfig
from pipelines.evaluation.analysis import ModelAnalysis, SplitAnalysis
from recsys.data.batch import Jagged
from recsys.evaluation.beyond_accuracy import (
    catalogue_coverage,
    gini_of_exposure,
    intra_list_diversity,
    item_popularity,
    novelty,
)
from recsys.evaluation.intervals import mean_intervals
from recsys.evaluation.paired import compare_models
from recsys.evaluation.ranking import RankingResult, per_user_metric
from recsys.evaluation.slices import (
    Slice,
    category_slices,
    item_popularity_slices,
    slice_metrics,
    user_activity_slices,
)
from recsys.fitting.queries import ModelInputs

CATEGORY_SLICES = 20
"""Categories that are slices, those with the most held-out events."""

MAX_LENGTH = 10
"""Length of the lists whose coverage, novelty and diversity are measured."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Background:
    """Training data that lists and targets are compared with."""

    inputs: ModelInputs
    histories: Jagged
    """Training events of every user row."""
    popularity: Tensor
    """Users who have each item in training, [N]."""
    num_users: int
    """Users with a training event."""
    category_names: Sequence[str]
    """Category names by row, [C]; row 0 is none."""
    domains: Jagged | None = None
    """Domain row of each item row, [N]; None where the catalogue has no domains."""
    domain_names: Sequence[str] = ()
    """Domain names by row; row 0 is none."""

    @classmethod
    def of(cls, inputs: ModelInputs, features: Path) -> Background:
        """Collect it from the features artefact."""
        sequences = inputs.sequences
        histories = sequences.histories(sequences.train_end)
        domains, domain_names = item_domains(features, inputs.sizes.num_item_rows)
        return cls(
            inputs=inputs,
            histories=histories,
            popularity=item_popularity(histories, inputs.sizes.num_item_rows),
            num_users=max(1, int((histories.lengths() > 0).sum())),
            category_names=category_names(features, inputs.sizes.num_categories),
            domains=domains,
            domain_names=domain_names,
        )


def category_names(features: Path, num_categories: int) -> list[str]:
    """Read the name of each category row, "" for a row without one."""
    names = [""] * num_categories
    path = features / "vocabularies" / "categories.parquet"
    if path.exists():
        for row, name in pl.read_parquet(path).select("row", "id").iter_rows():
            names[row] = name
    return names


def item_domains(features: Path, num_item_rows: int) -> tuple[Jagged | None, list[str]]:
    """Number the domains that the catalogue's items are in, by name."""
    path = features / "items.parquet"
    if not path.exists() or "domain" not in pl.read_parquet_schema(path):
        return None, []
    items = pl.read_parquet(path, columns=["item_row", "domain"]).drop_nulls("domain")
    own = items["domain"].cast(pl.String)
    names = own.unique().sort().to_list()
    rows = torch.zeros(num_item_rows, dtype=torch.int64)
    rows[items["item_row"].to_torch()] = (
        1 + own.cast(pl.Enum(names)).to_physical().cast(pl.Int64).to_torch()
    )
    return (Jagged.one_each(rows), ["", *names]) if names else (None, [])


def cut(result: RankingResult, known: Background) -> list[Slice]:
    """Cut a split's targets by item popularity, activity, domain and category."""
    targets = result.targets
    num_events = known.histories.lengths()[result.user_rows]
    slices = [
        *item_popularity_slices(targets, known.popularity),
        *user_activity_slices(targets, num_events),
    ]
    if known.domains is not None:
        slices += category_slices(targets, "domain", known.domains, known.domain_names)
    categories = known.inputs.catalogue.categories
    by_category = category_slices(targets, "category", categories, known.category_names)
    by_category.sort(key=lambda part: -int(part.targets.sum()))
    return [*slices, *by_category[:CATEGORY_SLICES]]


def beyond_accuracy(
    result: RankingResult, known: Background, config: EvaluationConfig
) -> dict[str, float]:
    """Measure a model's lists; undefined measures are absent.

    The catalogue is every item row, cold ones included.
    """
    k = min(MAX_LENGTH, max(config.ks))
    lists = result.top_k.item_rows
    catalogue = known.inputs.catalogue
    num_item_rows = known.inputs.sizes.num_item_rows
    per_user = {"novelty": novelty(lists, k, known.popularity, known.num_users)}
    if catalogue.content.shape[1]:
        per_user["intra_list_diversity"] = intra_list_diversity(lists, k, catalogue.content)
    values = {
        "coverage": catalogue_coverage(lists, k, num_item_rows),
        "gini": gini_of_exposure(lists, k, num_item_rows),
        **{name: float(value.nanmean()) for name, value in per_user.items()},
    }
    return {f"{name}@{k}": value for name, value in values.items() if np.isfinite(value)}


def best_single(
    results: Mapping[str, RankingResult], metric: str, blends: Sequence[str] = ()
) -> str:
    """Return the best model that is no blend; called with the validation split alone."""
    single = [name for name in results if name not in blends] or list(results)
    return max(
        single, key=lambda name: float(per_user_metric(results[name].ranks, metric).nanmean())
    )


def analyse_split(
    results: Mapping[str, RankingResult],
    known: Background,
    config: EvaluationConfig,
    *,
    baseline: str,
) -> SplitAnalysis:
    """Analyse all models on one split."""
    first = next(iter(results.values()))
    slices = cut(first, known)
    models, tested = {}, {}
    for name, result in results.items():
        values = {
            metric: per_user_metric(result.ranks, metric)
            for metric in (*config.interval_metrics(), *config.slice_metrics())
        }
        tested[name] = {metric: values[metric] for metric in config.slice_metrics()}
        models[name] = ModelAnalysis(
            intervals=mean_intervals(
                {metric: values[metric] for metric in config.interval_metrics()}
            ),
            beyond_accuracy=beyond_accuracy(result, known, config),
            slices=tuple(slice_metrics(result.ranks, slices, config.slice_metrics())),
        )
    return SplitAnalysis(
        num_users=first.num_users,
        num_targets=len(first.targets.values),
        models=models,
        comparisons=tuple(compare_models(tested, baseline)),
    )
