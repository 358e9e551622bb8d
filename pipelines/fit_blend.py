"""Stage fit_blend: learn on validation how the lists of all sources become the one that is served.

Every source was fit on train, so validation tells how far to trust each. The weights are judged on
users they were not fitted on (each half by the weights of the other). Where reciprocal rank fusion
or one source alone is better by more than noise, that is served, and blends.json says so.

Axes: U validation users, S sources, k list length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pipelines.artifacts import to_json
from pipelines.blends import (
    FILE,
    FUSION,
    LEARNED,
    NUM_FOLDS,
    ProfileBlend,
    fold_of_users,
    fusion_of,
    profiles_of,
    single_of,
    taken,
)
from pipelines.config import RunConfig
from pipelines.fitted_sources import load_sources
from pipelines.model_inputs import HeldOut, ModelInputs, tie_orders
from pipelines.sources import Source, ask_all, batches, lists_of
from pipelines.stage import StageContext, StageRows
from recsys.data.batch import Jagged
from recsys.data.top_k import TopK
from recsys.evaluation.ranking import list_ranks, per_user_metric
from recsys.retrieval.learned_blend import LearnedBlend
from recsys.retrieval.source_features import FEATURES
from recsys.retrieval.source_lists import blended_lists, fitted_blend

NOISE = 2.0
"""Standard errors of the paired difference that another way must be ahead of learned weights."""
BLOCK = 512
"""Queries blended at a time."""
SHOWN_PLACES = 10
"""Of the list, whose scores say what each source contributes."""


class Examples(NamedTuple):
    """Validation users with the lists of every source."""

    lists: dict[str, TopK]
    targets: Jagged
    history_lengths: Tensor
    """[U]"""
    folds: Tensor
    """[U]"""
    item_counts: Tensor
    """[N]"""

    def of(self, rows: Tensor, sources: Sequence[str]) -> Examples:
        """Take some users and sources."""
        return Examples(
            {name: taken(self.lists[name], rows) for name in sources},
            self.targets.take(rows),
            self.history_lengths[rows],
            self.folds[rows],
            self.item_counts,
        )

    def num_found(self) -> int:
        """Count users with a target in any list."""
        ranks = [list_ranks(top.item_rows, self.targets).values for top in self.lists.values()]
        found = torch.zeros(self.targets.batch_size, dtype=torch.int64)
        found.index_add_(0, self.targets.segments(), torch.stack(ranks).sum(0))
        return int((found > 0).sum())


def collect_examples(
    sources: Mapping[str, Source], inputs: ModelInputs, config: RunConfig
) -> Examples:
    """Ask every source for its lists for (a sample of) the validation users."""
    sequences = inputs.sequences
    held_out = HeldOut.of(sequences, "validation").sample(config.blend.max_queries, config.seed)
    counts = sequences.item_counts(sequences.train_end, inputs.sizes.num_item_rows)
    return examples_of(sources, inputs, held_out, counts, config)


def examples_of(
    sources: Mapping[str, Source],
    inputs: ModelInputs,
    held_out: HeldOut,
    item_counts: Tensor,
    config: RunConfig,
) -> Examples:
    """Ask every source for its lists for some held-out events.

    Args:
        sources: By model.
        inputs: What queries are built from.
        held_out: The queries.
        item_counts: Events of each item that the sources were fitted on, [N].
        config: The run's.
    """
    sequences, num_item_rows = inputs.sequences, inputs.sizes.num_item_rows
    parts: list[dict[str, TopK]] = []
    lengths, users = [], []
    for queries in batches(inputs, held_out, config):
        parts.append(lists_of(ask_all(sources, queries, num_item_rows)))
        lengths.append(queries["history"].lengths())
        users.append(queries["user"].values)
    if not parts:
        raise ValueError(
            "no user has a held-out event in the validation split, so there is nothing to choose "
            "a blend by; users need 3 or more events for leave_one_out"
        )
    folds = fold_of_users(sequences.num_user_rows, config.seed)
    return Examples(
        {
            name: TopK(
                torch.cat([part[name].scores for part in parts]),
                torch.cat([part[name].item_rows for part in parts]),
            )
            for name in parts[0]
        },
        held_out.targets,
        torch.cat(lengths),
        folds[torch.cat(users)],
        item_counts,
    )


def fit_profile(examples: Examples, config: RunConfig) -> tuple[ProfileBlend, dict[str, Any]]:
    """Fit a profile's weights, judge them, and choose what is served.

    Args:
        examples: With the profile's sources only.

    Returns:
        The weights, and what blends.json says of the profile.
    """
    sources, metric = tuple(examples.lists), config.evaluation.primary_metric
    fusion = fusion_of(sources)
    rivals = {FUSION: fusion, **{name: single_of(sources, name) for name in sources}}
    values = {
        name: measured(ProfileBlend(served=blend, folds=()), examples, metric)
        for name, blend in rivals.items()
    }
    document: dict[str, Any] = {
        "sources": list(sources),
        "metric": metric,
        "num_queries": examples.targets.batch_size,
        "num_found": examples.num_found(),
    }
    learned = learned_profile(examples, config)
    if learned is None:
        found = {**document, "served": FUSION, "reason": why_not_learned(config)}
        blend = ProfileBlend(served=fusion, folds=(fusion,) * NUM_FOLDS)
        return blend, {**found, "validation": means(values), **described(blend, examples)}
    values[LEARNED] = measured(learned, examples, metric, by_half=True)
    best = max(rivals, key=lambda name: float(values[name].nanmean()))
    ahead = values[best] - values[LEARNED]
    ahead = ahead[~ahead.isnan()]
    difference, error = float(ahead.mean()), standard_error(ahead)
    wins = difference > NOISE * error
    served = (
        learned
        if not wins
        else ProfileBlend(served=rivals[best], folds=(rivals[best],) * NUM_FOLDS)
    )
    return served, {
        **document,
        "served": best if wins else LEARNED,
        "reason": (
            f"against {best.replace('_', '-')}, the best other way, learned weights have "
            f"{-difference:+.4f} {metric} (standard error {error:.4f})"
        ),
        "rival": {"name": best, "ahead": difference, "standard_error": error},
        "validation": means(values),
        "loss": learned.served.fitted.loss if learned.served.fitted else None,
        "loss_by_kind": learned.served.fitted.loss_by_kind if learned.served.fitted else None,
        **described(served, examples),
    }


def why_not_learned(config: RunConfig) -> str:
    """Say why the surface's weights serve."""
    if not config.blend.enabled:
        return "blend.enabled is false"
    return (
        f"fewer than {config.blend.min_found} validation users of a half have their item in any "
        "list (blend.min_found), too few to learn weights from"
    )


def learned_profile(examples: Examples, config: RunConfig) -> ProfileBlend | None:
    """Fit weights on all users and on each half; None where there are too few to."""
    if not config.blend.enabled:
        return None
    sources = tuple(examples.lists)
    everyone = torch.arange(examples.targets.batch_size)
    halves = [examples.of(everyone[examples.folds != fold], sources) for fold in range(NUM_FOLDS)]
    if min(half.num_found() for half in halves) < config.blend.min_found:
        return None
    served, *folds = (learned_blend(part, config) for part in (examples, *halves))
    return ProfileBlend(served=served, folds=tuple(folds))


def learned_blend(examples: Examples, config: RunConfig) -> LearnedBlend:
    """Fit weights on users."""
    return fitted_blend(
        examples.lists,
        examples.targets,
        examples.history_lengths,
        examples.item_counts,
        config.blend.learned(),
    )


def measured(
    blend: ProfileBlend, examples: Examples, metric: str, *, by_half: bool = False
) -> Tensor:
    """Measure merged lists for every user, [U] float64; NaN without a target."""
    ranks = []
    for rows in torch.split(torch.arange(examples.targets.batch_size), BLOCK):
        part = examples.of(rows, tuple(examples.lists))
        folds = part.folds if by_half else None
        top = blend.lists(part.lists, part.history_lengths, part.item_counts, folds)
        ranks.append(list_ranks(top.item_rows, part.targets).values)
    return per_user_metric(Jagged(torch.cat(ranks), examples.targets.offsets), metric)


def means(values: Mapping[str, Tensor]) -> dict[str, float]:
    """Average each way's values over the users that have a target."""
    return {name: float(value.nanmean()) for name, value in values.items()}


def standard_error(differences: Tensor) -> float:
    """Estimate how far a mean of paired differences [U] may be off."""
    if len(differences) < 2:
        return float("inf")
    return float(differences.std() / len(differences) ** 0.5)


def described(blend: ProfileBlend, examples: Examples) -> dict[str, Any]:
    """Tell the weights of all users and items, and what each source adds to the first places."""
    weights = blend.served.weights[-1, -1]  # [S, F]
    totals = torch.zeros(len(blend.served.sources), dtype=torch.float64)
    for rows in torch.split(torch.arange(examples.targets.batch_size), BLOCK):
        part = examples.of(rows, blend.served.sources)
        found = blended_lists(
            blend.served, part.lists, part.history_lengths, part.item_counts, SHOWN_PLACES
        )
        if found.contributions is not None:
            totals += found.contributions.double().sum((0, 1))
    shares = totals / totals.sum().clamp_min(1e-30)
    return {
        "weights": {
            name: dict(zip(FEATURES, map(float, row), strict=True))
            for name, row in zip(blend.served.sources, weights, strict=True)
        },
        "shares": dict(zip(blend.served.sources, map(float, shares), strict=True)),
    }


def fit_blend(context: StageContext) -> StageRows:
    """Choose the blend of each profile once for each order of tied times."""
    config, features = context.config, context.inputs["build_features"]
    num_users = num_sources = 0
    for order in tie_orders(features):
        inputs = ModelInputs.load(features, context.inputs.get("embed_items"), order)
        examples = collect_examples(load_sources(context, inputs, order), inputs, config)
        everyone = torch.arange(examples.targets.batch_size)
        profiles = {}
        for profile, sources in profiles_of(examples.lists).items():
            blend, profiles[profile] = fit_profile(examples.of(everyone, sources), config)
            blend.save(context.output / order, profile)
        (context.output / order / FILE).write_text(to_json({"profiles": profiles}))
        num_users, num_sources = len(everyone), len(examples.lists)
    return StageRows(rows_in=num_users, rows_out=num_sources)
