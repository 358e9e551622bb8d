"""Stage fit_blend: learn on validation how the lists of all sources become the one that is served.

Every source was fit on train, so validation tells how far to trust each. The weights are judged on
users they were not fitted on (each half by the weights of the other). Where reciprocal rank fusion
or one source alone is better by more than noise, that is served, and blends.json says so.

Axes: U validation users, S sources, k list length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pipelines.candidates.blends import (
    FILE,
    FUSION,
    LEARNED,
    NUM_FOLDS,
    ProfileBlend,
    fusion_of,
    profiles_of,
    single_of,
)
from pipelines.candidates.examples import (
    BLOCK,
    NOISE,
    Examples,
    collect_examples,
    learned_blend,
    measured,
    measured_source,
    standard_error,
)
from pipelines.candidates.load import load_sources
from pipelines.config.run import RunConfig
from pipelines.engine.artifacts import to_json
from pipelines.engine.stage import StageContext, StageRows
from pipelines.inputs.tensors import read_inputs, tie_orders
from recsys.retrieval.blend.source_features import FEATURES
from recsys.retrieval.blend.source_lists import blended_lists

SHOWN_PLACES = 10
"""Of the list, whose scores say what each source contributes."""


def fit_profile(examples: Examples, config: RunConfig) -> tuple[ProfileBlend, dict[str, Any]]:
    """Fit a profile's weights, judge them, and choose what is served.

    Args:
        examples: With the profile's sources only.

    Returns:
        The weights, and what blends.json says of the profile.
    """
    sources, metric = tuple(examples.lists), config.evaluation.primary_metric
    fusion = fusion_of(sources)
    alternatives = {FUSION: fusion, **{name: single_of(sources, name) for name in sources}}
    values = {FUSION: measured(ProfileBlend(served=fusion, folds=()), examples, metric)}
    values |= {name: measured_source(examples, name, metric) for name in sources}
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
    best = max(alternatives, key=lambda name: float(values[name].nanmean()))
    ahead = values[best] - values[LEARNED]
    ahead = ahead[~ahead.isnan()]
    difference, error = float(ahead.mean()), standard_error(ahead)
    wins = difference > NOISE * error
    served = (
        learned
        if not wins
        else ProfileBlend(served=alternatives[best], folds=(alternatives[best],) * NUM_FOLDS)
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


def means(values: Mapping[str, Tensor]) -> dict[str, float]:
    """Average each way's values over the users that have a target."""
    return {name: float(value.nanmean()) for name, value in values.items()}


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
        inputs = read_inputs(features, context.inputs.get("embed_items"), order)
        examples = collect_examples(load_sources(context, inputs, order), inputs, config)
        everyone = torch.arange(examples.targets.batch_size)
        profiles = {}
        for profile, sources in profiles_of(examples.lists).items():
            blend, profiles[profile] = fit_profile(examples.of(everyone, sources), config)
            blend.save(context.output / order, profile)
        (context.output / order / FILE).write_text(to_json({"profiles": profiles}))
        num_users, num_sources = len(everyone), len(examples.lists)
    return StageRows(rows_in=num_users, rows_out=num_sources)
