"""The page of an off-policy evaluation: what a policy would have earned, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.pages.charts import (
    colors_of,
    counts,
    figure,
    interval_chart,
    line_chart,
    numbers,
    share_chart,
    shares,
    texts,
)
from pipelines.pages.document import Block, Chart, Page, Section, Table, Words

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
    sections: dict[str, tuple[str, str, list[Block]]] = {
        "estimates": ("Estimates", "", estimate_blocks(document)),
        "overlap": ("Overlap", _overlap_note(document), _overlap_blocks(document)),
        "at-any-time": ("At any time", "", _sequence_charts(document)),
        "protocol": ("Protocol", "", [Words(lines=_protocol(document))]),
    }
    return Page(
        title=f"{document['policy']} on the log of {document['logging']}",
        lead=lead,
        blocks=[
            Words(lines=lines),
            *(
                Section(key=key, title=title, note=note, blocks=blocks)
                for key, (title, note, blocks) in sections.items()
                if blocks
            ),
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


def _weighing(document: Document, name: str) -> str:
    return WEIGHTS[name] if document["slots"] > 1 else "item"


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


def _overlap_note(document: Document) -> str:
    where = ""
    if document["slots"] > 1:
        where = (
            f"; weights at slot {document['typical_slot']}, down to which half of the rewards are "
            "earned"
        )
    return f"How much of the log bears on the evaluated policy{where}."


def _overlap_blocks(document: Document) -> list[Block]:
    histogram, unit = document["histogram"], document["unit"]
    table = Table(
        key="weights-table",
        title="Weights",
        note="A weight is how much likelier the evaluated policy shows the logged items.",
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
                _weighing(document, name),
                *(one["effective"], one["effective_share"], one["zero_share"]),
                *(one["mean"], one["quantiles"]["0.5"], one["quantiles"]["0.99"]),
                *(one["largest"], one["largest_share"], TRUST[one["trust"]]),
            )
            for name, one in document["overlap"].items()
        ],
    )
    where = f" at slot {document['typical_slot']}" if document["slots"] > 1 else ""
    weights = figure(
        share_chart,
        "weights",
        f"Weights of the log's {unit}s{where}",
        "At 0 the evaluated policy never shows the logged items; if few weights are large, few "
        "lists decide.",
        [*texts("weights", "size"), *shares("share")],
        [
            (_weighing(document, name), size, share)
            for name, parts in histogram["shares"].items()
            for size, share in zip(histogram["labels"], parts, strict=True)
        ],
        "label series share",
        colors=colors_of(histogram["labels"]),
        x_title=f"share of {unit}s",
    )
    return [table, weights, *([_slots_chart(document)] if document["slots"] > 1 else [])]


def _slots_chart(document: Document) -> Block:
    return figure(
        line_chart,
        "slots",
        "Effective lists by slot",
        "Each slot further down multiplies another ratio: fewer lists decide.",
        [
            *numbers("slot"),
            *texts("weights"),
            *shares("effective share"),
            *counts("effective", "lists", "reward"),
            *shares("may show it"),
        ],
        [
            (
                *(one["slot"], name, one[key] / one["lists"]),
                *(one[key], one["lists"], one["reward"], one["same_item"]),
            )
            for key, name in (("effective", "down to the slot"), ("effective_alone", "own item"))
            for one in document["by_slot"]
        ],
        "x series y - - - -",
        x_title="slot",
        y_title="effective share",
        y_format=".0%",
        from_zero=True,
    )


def _sequence_charts(document: Document) -> list[Block]:
    """Draw the confidence sequence of IPS over the log; none if weights were clipped."""
    if "ips" not in document["sequences"]:
        return []
    bounds, unit = document["sequences"]["ips"], document["unit"]
    last, earned = bounds["looks"][-1], f"{document['reward']}s per {unit}"
    chart: Chart = figure(
        line_chart,
        "looks",
        f"{_described(document, {'estimator': 'ips'})[0]}, however often one looks",
        "With the stated confidence the value is between the lines at all looks together, so "
        "one may stop at any of them. It is wider than the interval, whose number of "
        f"{unit}s must be settled before.",
        [*counts(f"{unit}s seen"), *texts("bound"), *numbers(earned, format="metric")],
        [
            (look, name, value)
            for name, key in (("at least", "low"), ("at most", "high"))
            for look, value in zip(bounds["looks"], bounds[key], strict=True)
        ],
        "x series y",
        x_title=f"{unit}s seen",
        y_title=earned,
        x_values=[10**power for power in range(1, 8) if 10**power <= last] or [last],
        from_zero=True,
    )
    return [chart]


def _protocol(document: Document) -> list[str]:
    config, unit = document["config"], document["unit"]
    slots = f", of up to {document['slots']} slots" if document["slots"] > 1 else ""
    events = " events that name the list and the item, at most one an item"
    clip = "not clipped" if config["clip"] is None else f"clipped at {config['clip']}"
    groups = "users" if document["num_users"] < document["num_lists"] else f"{unit}s"
    return [
        f"{document['num_lists']:,} {unit}s from {document['from']} to {document['until']}, of "
        f"{document['lists_in_log']:,} in the log{slots}.",
        f"Reward: {document['reward']}{events if unit == 'list' else ''}.",
        f"Weights are {clip}; switch DR trusts the reward model above a weight of "
        f"{config['switch_at']}.",
        f"{config['confidence']:.0%} intervals, by {groups}; the reward model is fitted on other "
        f"{groups}.",
        *(
            f"{count:,} {unit}s left out: {reason}."
            for reason, count in document["left_out"].items()
        ),
    ]


def summarize(document: Document) -> list[str]:
    """Describe the result in a few sentences, and how far to trust it."""
    unit, logging, best = document["unit"], find_row(document, "logging"), choose_row(document)
    users = ""
    if document["num_users"] < document["num_lists"]:
        users = f" to {document['num_users']:,} users"
    found = [
        f"In {document['num_lists']:,} {unit}s{users} {document['logging']} earned "
        f"{logging['value']:.4f} {document['reward']}s per {unit} ({_between(logging)})."
    ]
    if best["trust"] == "none":
        found.append(
            f"This log does not show what {document['policy']} would have earned. Do not decide by "
            "these estimates."
        )
    else:
        found.append(_valued(document, best))
    return found + _reasons(document, best["weights"])


def _between(row: Mapping[str, Any]) -> str:
    return f"{row['low']:.4f} to {row['high']:.4f}"


def _valued(document: Document, best: Mapping[str, Any]) -> str:
    comparison = "which does not differ significantly from the logging policy's"
    if best["gain_low"] > 0:
        comparison = "more than the logging policy, significantly"
    elif best["gain_high"] < 0:
        comparison = "less than the logging policy, significantly"
    doubt = "" if best["trust"] == "good" else " Take it with doubt:"
    return (
        f"{document['policy']} would have earned {best['value']:.4f} "
        f"({document['config']['confidence']:.0%} interval {_between(best)}), {comparison} "
        f"({_described(document, best)[0]}).{doubt}"
    )


def _reasons(document: Document, weighing: str) -> list[str]:
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
            "): the estimate depends on it."
        )
    if one["strayed"] > 0.05:
        why = (
            "the log hardly ever shows the policy's items"
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
        parts = [f"{count:,}: {reason}" for reason, count in left_out.items()]
        found.append(f"Left out: {'; '.join(parts)}.")
    return found
