"""The page of an off-policy evaluation: what a policy would have earned on a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.off_policy.words import (
    TRUST,
    Document,
    between,
    chosen,
    meaning_of,
    name_of,
    per_unit,
    row_of,
    weighing_of,
    words_of,
)
from pipelines.pages.charts.shapes import Dot, Point, interval_chart, line_chart
from pipelines.pages.charts.style import color_of
from pipelines.pages.columns import counts, numbers, shares, texts
from pipelines.pages.document import Block, Cell, Chart, Origin, Page, Section, Table, Words
from pipelines.pages.figure import share_figure

FIRST, SECOND = color_of(0), color_of(1)


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
    unit, reward = document["unit"], document["reward"]
    dots = []
    for row in document["rows"]:
        label, value = name_of(document, row["estimator"]), row["value"]
        low, high = row["low"], row["high"]
        dots.append(
            Dot(
                label=label,
                series="estimate",
                mean=value,
                low=value if low is None else low,
                high=value if high is None else high,
                note=f"{label}: {per_unit(value)} ({between(low, high)})",
            )
        )
    return Chart(
        key=f"chart-estimates{name}",
        title=f"What {document['policy']} would have earned",
        note=f"{reward}s per {unit}; the dashed line is what the logging policy earned.",
        description="Every estimate with its interval.",
        spec=interval_chart(
            dots,
            {"estimate": FIRST},
            x_title=f"{reward}s per {unit}",
            labels=[dot.label for dot in dots],
            rule_at=row_of(document, "logging")["value"],
        ),
        columns=("estimator", "value", "from", "to"),
        rows=[(dot.label, dot.mean, dot.low, dot.high) for dot in dots],
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
    colors = {label: color_of(place) for place, label in enumerate(histogram["labels"])}
    where = f" at slot {document['typical_slot']}" if document["slots"] > 1 else ""
    return share_figure(
        "weights",
        (
            f"Weights of the log's {document['unit']}s{where}",
            "At 0 the evaluated policy never shows what was logged; if few weights are large, few "
            "lists decide.",
            "Shares of weights by their size.",
        ),
        {
            weighing_of(document, name): dict(zip(histogram["labels"], parts, strict=True))
            for name, parts in histogram["shares"].items()
        },
        colors,
        x_title=f"share of {document['unit']}s",
        columns=("weights", "size", "share"),
    )


def slots_charts(document: Document) -> list[Chart]:
    """Draw how the effective number of lists falls from slot to slot; none for single actions."""
    slots = document["by_slot"]
    if len(slots) < 2:
        return []
    names = {"effective": "down to the slot", "effective_alone": "own item"}
    points = [
        Point(
            x=one["slot"],
            y=one[key] / one["lists"],
            series=name,
            note=f"slot {one['slot']}, {name}: {one[key]:,.0f} of {one['lists']:,}",
        )
        for one in slots
        for key, name in names.items()
    ]
    fields = ("slot", "lists", "reward", "effective", "effective_alone", "same_item")
    colors = dict(zip(names.values(), (FIRST, SECOND), strict=True))
    return [
        Chart(
            key="slots",
            title="Effective lists by slot",
            note="Each slot further down multiplies another ratio: fewer lists decide.",
            description="Share of lists that weights are worth, by slot.",
            spec=line_chart(
                points,
                colors,
                x_title="slot",
                y_title="effective share",
                y_format=".0%",
                from_zero=True,
            ),
            legend=colors,
            columns=("slot", "lists", "reward", "effective", "effective, own item", "may show it"),
            rows=[tuple(one[field] for field in fields) for one in slots],
        )
    ]


def sequence_charts(document: Document) -> list[Chart]:
    """Draw the confidence sequence of IPS over the log; none if weights were clipped."""
    if "ips" not in document["sequences"]:
        return []
    bounds = document["sequences"]["ips"]
    places = list(zip(bounds["looks"], bounds["low"], bounds["high"], strict=True))
    unit = document["unit"]
    points = [
        Point(x=look, y=value, series=name, note=f"after {look:,} {unit}s: {name} {value:.4f}")
        for look, low, high in places
        for name, value in (("at least", low), ("at most", high))
    ]
    colors = {"at least": FIRST, "at most": SECOND}
    ticks = [10**power for power in range(1, 8) if 10**power <= places[-1][0]]
    return [
        Chart(
            key="looks",
            title=f"{name_of(document, 'ips')}, however often one looks",
            note="With the stated confidence the value is between the lines at all looks "
            "together, so one may stop at any of them. It is wider than the interval, whose number "
            f"of {unit}s must be settled before.",
            description=f"Bounds of the value by the number of {unit}s seen.",
            spec=line_chart(
                points,
                colors,
                x_title=f"{unit}s seen",
                y_title=f"{document['reward']}s per {unit}",
                x_values=ticks or [places[-1][0]],
                from_zero=True,
            ),
            legend=colors,
            columns=(f"{unit}s", "at least", "at most"),
            rows=places,
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
