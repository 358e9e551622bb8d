"""An off-policy evaluation in words: what the policy would have earned, and whether to trust it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Document = Mapping[str, Any]
ESTIMATORS = {
    "logging": ("logging policy", "what was earned: the mean of the log"),
    "dr": ("doubly robust", "a reward model, corrected by its weighted errors on the log"),
    "snips": ("self-normalised IPS", "weighted rewards over the sum of weights"),
    "ips": ("IPS", "weighted rewards"),
    "sndr": ("self-normalised DR", "doubly robust, errors over the sum of weights"),
    "switch_dr": ("switch DR", "doubly robust; the reward model alone where weights are large"),
    "dm": ("direct method", "the reward model alone; its error is unknown, so no interval"),
    "whole_list_snips": ("whole-list SNIPS", "the same by the whole list, divided"),
    "whole_list_ips": ("whole-list IPS", "weighted by the whole list: no assumption on users"),
    "independent_ips": ("item-position IPS", "each slot by its own item, below the logged ones"),
    "independent_snips": ("item-position SNIPS", "the same, divided by the sum of weights"),
    "independent_switch_dr": ("item-position switch DR", "the same, with a reward model"),
}
CASCADE = {
    "dr": ("cascade DR", "a reward model, corrected slot by slot"),
    "snips": ("cascade SNIPS", "weighted by the items down to each slot, divided"),
    "ips": ("cascade IPS", "weighted by the items down to each slot: people read from above"),
}
TRUST = {
    "good": "yes",
    "doubtful": "with doubt",
    "none": "no",
    "model": "model only",
}
WEIGHTS = {
    "cascade": "down to the slot",
    "whole_list": "whole list",
    "independent": "own item",
}
KNOWN = 0.01
"""Share of lists older than the policy's newest event above which that is said."""


def name_of(document: Document, estimator: str) -> str:
    """Format the name of an estimator."""
    return _of(document, estimator)[0]


def meaning_of(document: Document, estimator: str) -> str:
    """Describe an estimator."""
    return _of(document, estimator)[1]


def _of(document: Document, estimator: str) -> tuple[str, str]:
    if document["slots"] > 1 and estimator in CASCADE:
        return CASCADE[estimator]
    return ESTIMATORS[estimator]


def weighing_of(document: Document, name: str) -> str:
    """Format a kind of weight."""
    return WEIGHTS[name] if document["slots"] > 1 else "item"


def row_of(document: Document, estimator: str) -> Mapping[str, Any]:
    """Find a row."""
    return next(row for row in document["rows"] if row["estimator"] == estimator)


def chosen(document: Document) -> Mapping[str, Any]:
    """Choose the estimate to read: the first that can be trusted, else the first with least doubt.

    Whole lists go before slots valued one by one, which is another question.
    """
    rows = [
        row
        for row in document["rows"]
        if row["estimator"] not in ("logging", "dm") and row["weights"] != "independent"
    ]
    order = ("good", "doubtful", "none")
    return min(rows, key=lambda row: order.index(row["trust"]))


def per_unit(value: float) -> str:
    """Write a reward."""
    return f"{value:.4f}"


def between(low: float | None, high: float | None) -> str:
    """Write an interval, a dash for none."""
    return "\u2013" if low is None or high is None else f"{low:.4f} to {high:.4f}"


def words_of(document: Document) -> list[str]:
    """Describe the result in a few sentences, and how far to trust it."""
    found = [_earned(document)]
    best = chosen(document)
    if best["trust"] == "none":
        found.append(
            f"This log does not show what {document['policy']} would have earned. Do not decide by "
            "these estimates."
        )
    else:
        found.append(_valued(document, best))
    found += reasons_of(document, best["weights"])
    return found


def _earned(document: Document) -> str:
    unit, logging = document["unit"], row_of(document, "logging")
    users = ""
    if document["num_users"] < document["num_lists"]:
        users = f" to {document['num_users']:,} users"
    return (
        f"In {document['num_lists']:,} {unit}s{users} {document['logging']} earned "
        f"{per_unit(logging['value'])} {document['reward']}s per {unit} "
        f"({between(logging['low'], logging['high'])})."
    )


def _valued(document: Document, best: Mapping[str, Any]) -> str:
    level = f"{document['config']['confidence']:.0%}"
    if best["gain_low"] > 0:
        comparison = "more than the logging policy, significantly"
    elif best["gain_high"] < 0:
        comparison = "less than the logging policy, significantly"
    else:
        comparison = "which does not differ significantly from the logging policy's"
    doubt = "" if best["trust"] == "good" else " Take it with doubt:"
    return (
        f"{document['policy']} would have earned {per_unit(best['value'])} "
        f"({level} interval {between(best['low'], best['high'])}), {comparison} "
        f"({name_of(document, best['estimator'])}).{doubt}"
    )


def reasons_of(document: Document, weighing: str) -> list[str]:
    """List the reasons against trust and their remedies, or state that there are none."""
    one, unit = document["overlap"][weighing], document["unit"]
    found = []
    if one["effective"] < 400:
        found.append(
            f"Low overlap: the {document['num_lists']:,} {unit}s are worth {one['effective']:,.0f} "
            f"of the evaluated policy's own ({one['effective_share']:.1%}). Log more, or explore "
            "more."
        )
    if one["largest_share"] > 0.05:
        found.append(
            f"One {unit} has {one['largest_share']:.0%} of all weight (weight {one['largest']:,.0f}"
            "): the estimate stands on it."
        )
    if one["strayed"] > 0.05:
        why = (
            "the log hardly ever shows what the policy would"
            if one["mean"] < 1
            else "the propensities are not those that the items were drawn with, or a few rare "
            "ones weigh all"
        )
        found.append(f"Weights average {one['mean']:.2f} where they should average 1: {why}.")
    if document["known_share"] > KNOWN:
        found.append(
            f"{document['policy']} was fitted on events as new as {document['known_share']:.0%} of "
            "the lists, so it may have learned the very clicks that it is valued by: its value is "
            "too high by an unknown amount. Take a log that is newer than the bundle."
        )
    if not found:
        found.append(
            f"Overlap is good: the {document['num_lists']:,} {unit}s are worth "
            f"{one['effective']:,.0f} of the policy's own ({one['effective_share']:.0%}), the "
            f"largest weight is {one['largest']:,.1f}, and weights average {one['mean']:.2f} "
            "(they should average 1)."
        )
    if left_out := document["left_out"]:
        parts = [f"{count:,} where {reason}" for reason, count in left_out.items()]
        found.append(f"Left out: {'; '.join(parts)}.")
    return found


def headings(document: Document) -> tuple[str, ...]:
    """List the columns of the table."""
    level = f"{document['config']['confidence']:.0%}"
    return ("estimator", "value", f"{level} interval", "gain", "effective", "trust")


def cells(document: Document, row: Mapping[str, Any]) -> tuple[str, ...]:
    """Format a row of the table."""
    return (
        name_of(document, row["estimator"]),
        per_unit(row["value"]),
        between(row["low"], row["high"]),
        f"{row['gain']:+.4f}" if "gain" in row else "",
        f"{row['effective']:,.0f}" if "effective" in row else "",
        TRUST[row["trust"]] if row["estimator"] != "logging" else "",
    )
