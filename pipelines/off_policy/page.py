"""The page of an off-policy evaluation: what a policy would have earned on a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.off_policy.words import (
    TRUST,
    Document,
    chosen,
    meaning_of,
    name_of,
    row_of,
    weighing_of,
    words_of,
)
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
from pipelines.pages.document import Block, Cell, Chart, Origin, Page, Section, Table, Words


def off_policy_page(document: Document) -> Page:
    """Build the page.

    Args:
        document: Of `pipelines.off_policy.evaluation.evaluate`.
    """
    looks = sequence_charts(document)
    title = f"{document['policy']} on the log of {document['logging']}"
    protocol = Words(lines=_protocol(document))
    return Page(
        title=title,
        lead=words_of(document)[0],
        blocks=[
            Words(lines=words_of(document)[1:]),
            Section(key="estimates", title="Estimates", blocks=estimate_blocks(document)),
            _overlap(document),
            *([Section(key="at-any-time", title="At any time", blocks=looks)] if looks else []),
            Section(key="protocol", title="Protocol", blocks=[protocol]),
        ],
    )


def estimate_blocks(
    document: Document, name: str = "", origins: Sequence[Origin] = ()
) -> list[Block]:
    """Draw every estimate with its interval, and the table of them.

    Args:
        name: Distinguishes several documents on one page.
    """
    level, unit = f"{document['config']['confidence']:.0%}", document["unit"]
    rows = [_estimate(document, row) for row in document["rows"]]
    table = Table(
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
        origins=origins,
    )
    return [_estimates_chart(document, name, origins), table]


def _estimate(document: Document, row: Mapping[str, Any]) -> tuple[Cell, ...]:
    label = name_of(document, row["estimator"])
    read = " (read this one)" if row["estimator"] == chosen(document)["estimator"] else ""
    trust = "" if row["estimator"] == "logging" else TRUST[row["trust"]]
    return (
        *(f"{label}{read}", row["value"], row["low"], row["high"]),
        *(row.get(key) for key in ("gain", "gain_low", "gain_high", "effective")),
        *(trust, meaning_of(document, row["estimator"])),
    )


def _estimates_chart(document: Document, name: str, origins: Sequence[Origin]) -> Chart:
    earned = f"{document['reward']}s per {document['unit']}"
    return figure(
        interval_chart,
        f"chart-estimates{name}",
        f"What {document['policy']} would have earned",
        f"{earned}; the dashed line is what the logging policy earned.",
        [*texts("estimator"), *numbers("value", "from", "to", format="metric")],
        [
            (name_of(document, row["estimator"]), row["value"], row["low"], row["high"])
            for row in document["rows"]
        ],
        "label mean low high",
        x_title=earned,
        rule_at=row_of(document, "logging")["value"],
        origins=origins,
    )


def _overlap(document: Document) -> Section:
    where = ""
    if document["slots"] > 1:
        where = (
            f"; weights at slot {document['typical_slot']}, down to which half of the rewards are "
            "earned"
        )
    table = Table(
        key="weights-table",
        title="Weights",
        note="A weight is how much likelier the evaluated policy shows what was logged.",
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
                weighing_of(document, name),
                *(one["effective"], one["effective_share"], one["zero_share"]),
                *(one["mean"], one["quantiles"]["0.5"], one["quantiles"]["0.99"]),
                *(one["largest"], one["largest_share"], TRUST[one["trust"]]),
            )
            for name, one in document["overlap"].items()
        ],
    )
    return Section(
        key="overlap",
        title="Overlap",
        note=f"How much of the log bears on the evaluated policy{where}.",
        blocks=[table, weights_chart(document), *slots_charts(document)],
    )


def weights_chart(document: Document) -> Chart:
    """Draw how weights are spread."""
    histogram = document["histogram"]
    where = f" at slot {document['typical_slot']}" if document["slots"] > 1 else ""
    return figure(
        share_chart,
        "weights",
        f"Weights of the log's {document['unit']}s{where}",
        "At 0 the evaluated policy never shows what was logged; if few weights are large, few "
        "lists decide.",
        [*texts("weights", "size"), *shares("share")],
        [
            (weighing_of(document, name), size, share)
            for name, parts in histogram["shares"].items()
            for size, share in zip(histogram["labels"], parts, strict=True)
        ],
        "label series share",
        colors=colors_of(histogram["labels"]),
        x_title=f"share of {document['unit']}s",
    )


def slots_charts(document: Document) -> list[Chart]:
    """Draw how the effective number of lists falls from slot to slot; none for single actions."""
    slots = document["by_slot"]
    if len(slots) < 2:
        return []
    names = {"effective": "down to the slot", "effective_alone": "own item"}
    return [
        figure(
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
                for key, name in names.items()
                for one in slots
            ],
            "x series y - - - -",
            x_title="slot",
            y_title="effective share",
            y_format=".0%",
            from_zero=True,
        )
    ]


def sequence_charts(document: Document) -> list[Chart]:
    """Draw the confidence sequence of IPS over the log; none if weights were clipped."""
    if "ips" not in document["sequences"]:
        return []
    bounds = document["sequences"]["ips"]
    last, unit = bounds["looks"][-1], document["unit"]
    earned = f"{document['reward']}s per {unit}"
    return [
        figure(
            line_chart,
            "looks",
            f"{name_of(document, 'ips')}, however often one looks",
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
    ]


def _protocol(document: Document) -> list[str]:
    config, unit = document["config"], document["unit"]
    several = document["slots"] > 1
    slots = f", of up to {document['slots']} slots" if several else ""
    events = " events that name the list and the item, at most one an item"
    clip = (
        "Weights are not clipped"
        if config["clip"] is None
        else f"Weights are clipped at {config['clip']}"
    )
    groups = "users" if document["num_users"] < document["num_lists"] else f"{unit}s"
    return [
        f"{document['num_lists']:,} {unit}s from {document['from']} to {document['until']}, of "
        f"{document['lists_in_log']:,} in the log{slots}.",
        f"Reward: {document['reward']}{events if unit == 'list' else ''}.",
        f"{clip}; switch DR trusts the reward model above a weight of {config['switch_at']}.",
        f"{config['confidence']:.0%} intervals, by {groups}; the reward model is fitted on other "
        f"{groups}.",
        *(
            f"{count:,} {unit}s left out: {reason}."
            for reason, count in document["left_out"].items()
        ),
    ]
