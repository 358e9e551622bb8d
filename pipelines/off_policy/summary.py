"""An off-policy evaluation as a table and sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.pages.charts import counts, numbers, texts
from pipelines.pages.document import Table

Document = Mapping[str, Any]
"""See `pipelines.off_policy.evaluation.evaluate`."""
ESTIMATORS = {
    "logging": "logging policy",
    "dr": "doubly robust (read this one)",
    "snips": "self-normalised IPS",
    "ips": "IPS",
}
TRUST = {"good": "yes", "doubtful": "with doubt", "none": "no"}
KNOWN = 0.01
"""Share of lists older than the policy's newest event above which a warning is given."""


def estimates_table(document: Document) -> Table:
    """Tabulate every estimate."""
    fields = ("value", "low", "high", "gain", "gain_low", "gain_high", "effective")
    return Table(
        key="table-estimates",
        title="Estimates",
        note=f"{document['config']['confidence']:.0%} intervals. Effective: how many "
        f"{document['unit']}s of the policy's own the log is worth.",
        columns=[
            *texts("estimator"),
            *numbers("value", "low", "high", format="metric"),
            *numbers("gain", "gain from", "gain to", format="signed"),
            *counts("effective"),
            *texts("trust"),
        ],
        rows=[
            (
                ESTIMATORS[row["estimator"]],
                *(row.get(field) for field in fields),
                "" if row["estimator"] == "logging" else TRUST[row["trust"]],
            )
            for row in document["rows"]
        ],
    )


def find_row(document: Document, estimator: str) -> Mapping[str, Any]:
    """Find the row of an estimator."""
    return next(row for row in document["rows"] if row["estimator"] == estimator)


def summarize(document: Document) -> list[str]:
    """Describe the result in a few sentences, and how far to trust it."""
    unit, policy = document["unit"], document["policy"]
    logging, best = find_row(document, "logging"), find_row(document, "dr")
    is_fewer = document["num_users"] < document["num_lists"]
    users = f" to {document['num_users']:,} users" if is_fewer else ""
    found = [
        f"In {document['num_lists']:,} {unit}s{users} {document['logging']} earned "
        f"{logging['value']:.4f} {document['reward']}s per {unit} ({logging['low']:.4f} to "
        f"{logging['high']:.4f})."
    ]
    if best["trust"] == "none":
        found.append(
            f"This log does not show what {policy} would have earned. Do not decide by these "
            "estimates."
        )
    else:
        comparison = "which does not differ significantly from the logging policy's"
        if best["gain_low"] > 0 or best["gain_high"] < 0:
            way = "more" if best["gain_low"] > 0 else "less"
            comparison = f"{way} than the logging policy, significantly"
        doubt = "" if best["trust"] == "good" else " Take it with doubt:"
        found.append(
            f"{policy} would have earned {best['value']:.4f} "
            f"({document['config']['confidence']:.0%} interval {best['low']:.4f} to "
            f"{best['high']:.4f}), {comparison} (doubly robust).{doubt}"
        )
    found += _reasons(document)
    if left_out := document["left_out"]:
        parts = [f"{count:,}: {reason}" for reason, count in left_out.items()]
        found.append(f"Left out: {'; '.join(parts)}.")
    return found


def _reasons(document: Document) -> list[str]:
    """List the reasons against trust and their remedies, or state that there are none."""
    one, unit, policy = document["overlap"]["cascade"], document["unit"], document["policy"]
    worth = f"the {document['num_lists']:,} {unit}s are worth {one['effective']:,.0f}"
    found = []
    if one["effective"] < 400:
        found.append(
            f"Low overlap: {worth} of the evaluated policy's own ({one['effective_share']:.1%}). "
            "Log more, or explore more."
        )
    if one["largest_share"] > 0.05:
        found.append(
            f"One {unit} has {one['largest_share']:.0%} of all weight (weight {one['largest']:,.0f}"
            "): the estimate depends on it."
        )
    if one["strayed"] > 0.05:
        why = "the propensities are not those of the log, or a few rare ones weigh all"
        if one["mean"] < 1:
            why = "the log hardly ever shows the policy's items"
        found.append(f"Weights average {one['mean']:.2f} where they should average 1: {why}.")
    if document["known_share"] > KNOWN:
        found.append(
            f"{policy} was fitted on events as new as {document['known_share']:.0%} of the lists, "
            "so it may have learned the very clicks that it is valued by: its value is too high by "
            "an unknown amount. Take a log that is newer than the bundle."
        )
    return found or [
        f"Overlap is good: {worth} of the policy's own ({one['effective_share']:.0%}), the largest "
        f"weight is {one['largest']:,.1f}, and weights average {one['mean']:.2f} (they should "
        "average 1)."
    ]
