"""What metrics, models and slices are called in a report, and what each means in a line.

Names that are not known here are shown as they are, so that another model or metric needs no
change to be reported.
"""

from __future__ import annotations

MODELS = {
    "popularity": "popularity",
    "item_to_item": "item-to-item",
    "two_tower": "two-tower",
    "content": "content",
    "sequence": "sequence model",
    "ensemble": "sequence model, all members",
    "generative": "generative model",
    "blend_fast": "blend (fast)",
    "blend": "blend",
    "ranked": "blend (fast), ranked",
}
MODEL_MEANINGS = {
    "popularity": "the same list for everyone: what was taken most, recent events counting more",
    "item_to_item": "what others took next to the items of the user's history",
    "two_tower": "a trained network: the history and each item become vectors that are compared",
    "content": "items whose text is like that of what the user took lately",
    "sequence": "a trained network that reads the history in its order",
    "ensemble": "several networks that read the history in its order, their scores averaged",
    "generative": "a trained network that writes out the next item's semantic ID, best ones first",
    "blend_fast": "the lists of all models but the slow ones put together; served by default",
    "blend": "the lists of all models put together",
    "ranked": "the fast blend with its first places in a trained ranker's order",
}
METRICS = {
    "ndcg": ("NDCG@{k}", "1 if the item comes first, less the lower it stands, 0 below place {k}"),
    "recall": ("Recall@{k}", "share of a user's hidden items among the first {k}"),
    "hit_rate": ("Hit rate@{k}", "share of users with a hidden item among the first {k}"),
    "mrr": ("MRR@{k}", "1 divided by the place of the first hit, 0 below place {k}"),
    "map": ("MAP@{k}", "precision averaged over the places of the hits among the first {k}"),
    "precision": ("Precision@{k}", "share of the first {k} places that are hits"),
}
BEYOND_ACCURACY = {
    "coverage": (
        "Catalogue coverage",
        "share of all items that stand in anyone's first {k}; more means more of the shop is seen",
    ),
    "gini": (
        "Concentration (Gini)",
        "0: every item is shown equally often; 1: one item takes every place",
    ),
    "novelty": (
        "Novelty, bits",
        "how surprising the items are; each bit more means half as many users know the item",
    ),
    "average_popularity": (
        "Average popularity",
        "how many users took a listed item before, on average",
    ),
    "popularity_lift": (
        "Popularity lift",
        "above 0, lists are more popular than what users take on their own; below 0, less",
    ),
    "intra_list_diversity": (
        "Diversity by content",
        "0: the items of a list are all alike; more: they differ in text and attributes",
    ),
    "category_diversity": (
        "Diversity by category",
        "0: the items of a list have the same categories; 1: no two have one in common",
    ),
    "miscalibration": (
        "Miscalibration",
        "0: a list has the same mix of categories as the user's history; more: another mix",
    ),
}
SLICE_GROUPS = {
    "item_popularity": (
        "By popularity of the item",
        "Head: the most popular items, which hold half of all training events. Torso: the next "
        "40%. Tail: the rest. Cold: never seen in training.",
    ),
    "user_activity": (
        "By activity of the user",
        "New users have few events to go by; heavy ones are the most active fifth of the others.",
    ),
    "history_length": (
        "By length of the history",
        "Events before the hidden item.",
    ),
    "category": (
        "By category of the item",
        "An item may be in several categories.",
    ),
    "domain": ("By domain", "Where the hidden item belongs."),
}
TIE_ORDERS = {
    "given": "as in the file",
    "shuffled": "shuffled",
}
SPLITS = {"validation": "validation", "test": "test"}


def model_label(model: str) -> str:
    """Name a model for a reader."""
    return MODELS.get(model, model.replace("_", " "))


def parted(metric: str) -> tuple[str, str]:
    """Split "ndcg@10" into its name and its list length; "" where it has none."""
    name, _, k = metric.partition("@")
    return name, k


def metric_label(metric: str) -> str:
    """Name a metric for a reader."""
    name, k = parted(metric)
    return METRICS[name][0].format(k=k) if name in METRICS else metric


def metric_meaning(metric: str) -> str:
    """Say in a line what a metric measures; "" where it is not known here."""
    name, k = parted(metric)
    return METRICS[name][1].format(k=k) if name in METRICS else ""


def beyond_label(measure: str) -> str:
    """Name a measure beyond accuracy for a reader."""
    name, _ = parted(measure)
    return BEYOND_ACCURACY[name][0] if name in BEYOND_ACCURACY else measure


def beyond_meaning(measure: str) -> str:
    """Say in a line what a measure beyond accuracy tells."""
    name, k = parted(measure)
    return BEYOND_ACCURACY[name][1].format(k=k) if name in BEYOND_ACCURACY else ""


def group_title(group: str) -> str:
    """Name a group of slices for a reader."""
    return SLICE_GROUPS[group][0] if group in SLICE_GROUPS else f"By {group.replace('_', ' ')}"


def group_meaning(group: str) -> str:
    """Say how a group of slices cuts; "" where it is not known here."""
    return SLICE_GROUPS[group][1] if group in SLICE_GROUPS else ""
