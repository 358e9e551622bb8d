"""The page of an off-policy evaluation: what a policy would have earned, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.pages.charts import counts, figure, interval_chart, numbers, shares, texts
from pipelines.pages.document import Block, Page, Section, Table, Words

Document = Mapping[str, Any]
"""See `pipelines.off_policy.evaluation.evaluate`."""
ESTIMATORS = {
    "logging": ("logging policy", "the mean reward of the log"),
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
TRUST = {"good": "yes", "doubtful": "with doubt", "none": "no", "model": "model only"}
WEIGHTS = {"cascade": "down to the slot", "whole_list": "whole list", "independent": "own item"}
KNOWN = 0.01
"""Share of lists older than the policy's newest event above which a warning is given."""
SHORT = ("estimator", "value", "low", "high", "gain", "effective", "trust")
"""Columns of the estimates that a terminal has room for."""


def off_policy_page(document: Document) -> Page:
    """Build the page."""
    lead, *lines = summarize(document)
    return Page(
        title=f"{document['policy']} on the log of {document['logging']}",
        lead=lead,
        blocks=[
            Words(lines=lines),
            Section(key="estimates", title="Estimates", blocks=estimate_blocks(document)),
            Section(key="overlap", title="Overlap", blocks=[weights_table(document)]),
            Section(key="protocol", title="Protocol", blocks=[Words(lines=_protocol(document))]),
        ],
    )


def estimate_blocks(document: Document, name: str = "") -> list[Block]:
    """Draw every estimate with its interval, and the table of them.

    Args:
        name: Distinguishes several documents on one page.
    """
    earned = f"{document['reward']}s per {document['unit']}"
    chart = figure(
        interval_chart,
        f"chart-estimates{name}",
        f"What {document['policy']} would have earned",
        f"{earned}; the dashed line is what the logging policy earned.",
        [*texts("estimator"), *numbers("value", "from", "to", format="metric")],
        [
            (_described(document, row)[0], row["value"], row["low"], row["high"])
            for row in document["rows"]
        ],
        "label mean low high",
        x_title=earned,
        rule_at=find_row(document, "logging")["value"],
    )
    return [chart, estimates_table(document, name)]


def estimates_table(document: Document, name: str = "") -> Table:
    """Tabulate every estimate."""
    level, unit = f"{document['config']['confidence']:.0%}", document["unit"]
    best, rows = choose_row(document)["estimator"], []
    for row in document["rows"]:
        label, meaning = _described(document, row)
        read = " (read this one)" if row["estimator"] == best else ""
        trust = "" if row["estimator"] == "logging" else TRUST[row["trust"]]
        gains = (row.get(key) for key in ("gain", "gain_low", "gain_high", "effective"))
        rows.append(
            (f"{label}{read}", row["value"], row["low"], row["high"], *gains, trust, meaning)
        )
    return Table(
        key=f"table-estimates{name}",
        title="Estimates",
        note=f"{level} intervals. Effective: how many {unit}s of the policy's own the log is "
        "worth.",
        columns=[
            *texts("estimator"),
            *numbers("value", "low", "high", format="metric"),
            *numbers("gain", "gain from", "gain to", format="signed"),
            *counts("effective"),
            *texts("trust", "what it is"),
        ],
        rows=rows,
    )


def _described(document: Document, row: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name and the meaning of a row's estimator."""
    name = row["estimator"]
    return (CASCADE if document["slots"] > 1 and name in CASCADE else ESTIMATORS)[name]


def find_row(document: Document, estimator: str) -> Mapping[str, Any]:
    """Find the row of an estimator."""
    return next(row for row in document["rows"] if row["estimator"] == estimator)


def choose_row(document: Document) -> Mapping[str, Any]:
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


def weights_table(document: Document) -> Table:
    """Tabulate how much of the log bears on the evaluated policy."""
    lists = document["slots"] > 1
    where = f" Of slot {document['typical_slot']}: half of the rewards are earned down to it."
    return Table(
        key="weights",
        title="Weights",
        note="A weight is how much likelier the evaluated policy shows the logged items; if few "
        f"weights are large, few lists decide.{where if lists else ''}",
        columns=[
            *texts("weights"),
            *counts("effective"),
            *shares("share", "at 0"),
            *numbers("mean", "median", "99%", "largest"),
            *shares("its share"),
            *texts("trust"),
        ],
        rows=[
            (
                WEIGHTS[name] if lists else "item",
                *(one["effective"], one["effective_share"], one["zero_share"]),
                *(one["mean"], one["quantiles"]["0.5"], one["quantiles"]["0.99"]),
                *(one["largest"], one["largest_share"], TRUST[one["trust"]]),
            )
            for name, one in document["overlap"].items()
        ],
    )


def _protocol(document: Document) -> list[str]:
    config, unit = document["config"], document["unit"]
    slots = f", of up to {document['slots']} slots" if document["slots"] > 1 else ""
    clip = "not clipped" if config["clip"] is None else f"clipped at {config['clip']}"
    groups = "users" if document["num_users"] < document["num_lists"] else f"{unit}s"
    return [
        f"{document['num_lists']:,} {unit}s from {document['from']} to {document['until']}, of "
        f"{document['lists_in_log']:,} in the log{slots}.",
        f"Reward: {document['reward']} events that name the list and the item.",
        f"Weights are {clip}; switch DR trusts the reward model above {config['switch_at']}.",
        f"{config['confidence']:.0%} intervals, by {groups}; the reward model is fitted on other "
        f"{groups}.",
    ]


def summarize(document: Document) -> list[str]:
    """Describe the result in a few sentences, and how far to trust it."""
    unit, logging, best = document["unit"], find_row(document, "logging"), choose_row(document)
    policy, lists = document["policy"], f"{document['num_lists']:,} {unit}s"
    is_fewer = document["num_users"] < document["num_lists"]
    users = f" to {document['num_users']:,} users" if is_fewer else ""
    found = [
        f"In {lists}{users} {document['logging']} earned {logging['value']:.4f} "
        f"{document['reward']}s per {unit} ({logging['low']:.4f} to {logging['high']:.4f})."
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
            f"{best['high']:.4f}), {comparison} ({_described(document, best)[0]}).{doubt}"
        )
    found += _reasons(document, best["weights"])
    if left_out := document["left_out"]:
        parts = [f"{count:,}: {reason}" for reason, count in left_out.items()]
        found.append(f"Left out: {'; '.join(parts)}.")
    return found


def _reasons(document: Document, weighing: str) -> list[str]:
    """List the reasons against trust and their remedies, or state that there are none."""
    one, unit, policy = document["overlap"][weighing], document["unit"], document["policy"]
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
    if found:
        return found
    return [
        f"Overlap is good: {worth} of the policy's own ({one['effective_share']:.0%}), the largest "
        f"weight is {one['largest']:,.1f}, and weights average {one['mean']:.2f} (they should "
        "average 1)."
    ]
