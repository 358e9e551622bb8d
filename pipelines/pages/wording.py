"""Labels of metrics and models in a report, and one line of explanation for each metric.

Names that are not listed are shown as they are, so that another model or metric needs no change.
"""

from __future__ import annotations

from collections.abc import Iterable

import recsys.models.names as names

MODELS = {
    **{one.name: one.label for one in names.MODELS},
    "blend_fast": "blend (fast)",
    "blend": "blend",
    "ranked": "blend (fast), ranked",
    "served": "served",
}
PRIMARY = "ndcg@10"
"""Metric that pages lead with if a run names no other."""
METRICS = {
    "ndcg": ("NDCG@{k}", "gain discounted by the log of the rank; 1 for rank 1, 0 beyond {k}"),
    "recall": ("Recall@{k}", "share of a user's held-out items among the first {k}"),
    "hit_rate": ("Hit rate@{k}", "share of users with a held-out item among the first {k}"),
    "mrr": ("MRR@{k}", "reciprocal rank of the first hit, 0 beyond {k}"),
    "map": ("MAP@{k}", "precision averaged over the ranks of the hits among the first {k}"),
    "precision": ("Precision@{k}", "share of the first {k} that are hits"),
}
BEYOND_ACCURACY = {
    "coverage": (
        "Catalogue coverage",
        "share of the catalogue that is in at least one user's first {k}",
    ),
    "gini": (
        "Concentration (Gini)",
        "0: every item is listed equally often; 1: every list is the same item",
    ),
    "novelty": (
        "Novelty, bits",
        "mean self-information of listed items; one bit more: half as many users know them",
    ),
    "intra_list_diversity": (
        "Diversity by content",
        "mean distance in content between items of a list; 0: all the same",
    ),
}
MEASURES = METRICS | BEYOND_ACCURACY


def model_label(model: str) -> str:
    """Label a model."""
    return MODELS.get(model, model.replace("_", " "))


def parted(metric: str) -> tuple[str, str]:
    """Split "ndcg@10" into its name and its list length; "" where it has none."""
    name, _, k = metric.partition("@")
    return name, k


def in_order(models: Iterable[str]) -> tuple[str, ...]:
    """Order models as the catalogue does, so that each has the same colour on every page."""
    place = {name: number for number, name in enumerate(MODELS)}
    return tuple(sorted(models, key=lambda one: (place.get(one, len(place)), one)))


def by_fame(metrics: Iterable[str], primary: str = PRIMARY) -> list[str]:
    """Order metrics: the primary one, those of its list length, then the best known first."""
    known = list(MEASURES)

    def place(metric: str) -> tuple[bool, bool, int, int, str]:
        name, k = parted(metric)
        rank = known.index(name) if name in known else len(known)
        length = int(k) if k.isdigit() else 0
        return metric != primary, k != parted(primary)[1], rank, length, metric

    return sorted(metrics, key=place)


def metric_label(metric: str) -> str:
    """Label a metric or a beyond-accuracy measure."""
    name, k = parted(metric)
    return MEASURES[name][0].format(k=k) if name in MEASURES else metric


def metric_meaning(metric: str) -> str:
    """Explain a metric or a beyond-accuracy measure in a line; "" where it is not listed."""
    name, k = parted(metric)
    return MEASURES[name][1].format(k=k) if name in MEASURES else ""
