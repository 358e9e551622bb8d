"""Gains that are too good to be true: a label that reached the features.

Axes: Q test queries, F values of a feature.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
from numpy.typing import NDArray

from pipelines.candidates.blends import BLEND_FAST
from pipelines.publishing.gate.subject import Subject, at_most
from pipelines.ranking.artefact import RANKED
from serving.bundle.manifest import Verdict

LOOK = (
    "looks too good: find out why before it is served. If it is real, raise release.gate.max_gain"
)
MIN_QUERIES = 200
K = 10
MIN_TIMES_OF_CHANCE = 3.0
"""A feature that finds this many times what popularity finds, or half of what popularity leaves,
and more than the served list, is the label."""


def too_good(subject: Subject) -> Iterator[Verdict]:
    """Hold back a gain that no retraining brings."""
    most = subject.config.max_gain
    if not most:
        return
    by = None if subject.compared is None else subject.compared.by
    if by is not None and np.isfinite(by.relative) and not new_models(subject):
        yield at_most(
            "gain over the champion",
            by.relative,
            most,
            f"relative gain on the same queries, {by.challenger:.4f} against {by.champion:.4f}; "
            f"above the bound it {LOOK}",
        )
    ranked, blend = (
        subject.metrics.get(name, {}).get(subject.metric) for name in (RANKED, BLEND_FAST)
    )
    answers = subject.answered
    if ranked is not None and blend and answers is not None and len(answers) >= MIN_QUERIES:
        yield at_most(
            "gain of the ranker",
            ranked / blend - 1,
            most,
            f"{ranked:.4f} against {blend:.4f} of the list that it reorders; above the bound one "
            f"of its features may hold the label, and it {LOOK}",
        )


def new_models(subject: Subject) -> set[str]:
    """Name the models that the champion lacks: they may well double what it finds."""
    before = () if subject.champion is None else subject.champion.manifest.models
    return {*subject.challenger.manifest.models} - {*before}


def one_feature_alone(subject: Subject) -> Iterator[Verdict]:
    """Refuse a feature of users that alone finds the held-out items."""
    answers, bundle = subject.answered, subject.challenger
    if answers is None or answers["user_id"].n_unique() < MIN_QUERIES:
        return
    first = answers.unique("user_id", keep="first", maintain_order=True)
    users = np.array([bundle.users.row_of(one) or 0 for one in first["user_id"]])
    items = np.array([bundle.catalogue.row_of(one) or 0 for one in first["item_id"]])
    served = _hits(first["rank"])
    popular = found_by(np.zeros(len(items), np.int64), items)
    bound = max(served, min(MIN_TIMES_OF_CHANCE * popular, (1 + popular) / 2))
    for name, values in bundle.users.features.items():
        alone = found_by(np.asarray(values)[users], items)
        if alone > bound:
            yield at_most(
                f"user feature {name} alone",
                alone,
                bound,
                f"share of held-out items among the {K} that others with the same value took; the "
                f"served list finds {served:.3f}. The label reached this feature",
            )


def _hits(ranks: pl.Series) -> float:
    return float(ranks.fill_null(K + 1).is_between(1, K).to_numpy().mean())


def found_by(values: NDArray[np.int64], items: NDArray[np.int64]) -> float:
    """Share of held-out items among the K most taken by the other half with the same value."""
    half = np.random.default_rng(0).permutation(len(items)) % 2
    hits = 0
    for side in (0, 1):
        of_others, own = half != side, half == side
        for value in np.unique(values[own]):
            counts = np.bincount(items[of_others & (values == value)])
            most = np.argsort(-counts, kind="stable")[:K]
            hits += int(np.isin(items[own & (values == value)], most[counts[most] > 0]).sum())
    return hits / max(1, len(items))
