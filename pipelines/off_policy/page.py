"""The page of an off-policy evaluation: one HTML file that opens anywhere."""

from __future__ import annotations

from pathlib import Path

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
from pipelines.pages.figure import Figure, percent, share_figure
from pipelines.pages.page import rendered
from recsys.data.durable import write_durably

FIRST, SECOND = color_of(0), color_of(1)


def off_policy_html(document: Document) -> str:
    """Write the page.

    Args:
        document: Of `pipelines.off_policy.evaluation.evaluate`.
    """
    best = chosen(document)
    figures = {
        "estimates": [estimates_figure(document)],
        "overlap": [weights_figure(document), *slots_figures(document)],
        "looks": sequence_figures(document),
    }
    return rendered(
        "off_policy.html.jinja",
        figures,
        document=document,
        words=words_of(document),
        best=best["estimator"],
        name_of=name_of,
        meaning_of=meaning_of,
        weighing_of=weighing_of,
        per_unit=per_unit,
        between=between,
        trust=TRUST,
    )


def write_off_policy_page(document: Document, path: Path) -> None:
    """Write the page as a file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, off_policy_html(document))


def estimates_figure(document: Document) -> Figure:
    """Draw every estimate with its interval, and what was earned as a line."""
    dots, rows = [], []
    named = [(name_of(document, row["estimator"]), row) for row in document["rows"]]
    for label, row in named:
        value, low, high = row["value"], row["low"], row["high"]
        rows.append((label, per_unit(value), between(low, high)))
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
    unit, reward = document["unit"], document["reward"]
    return Figure(
        key="estimates",
        title=f"What {document['policy']} would have earned",
        note=f"{reward}s per {unit}; the dashed line is what the logging policy earned.",
        description="Every estimate with its interval.",
        spec=interval_chart(
            dots,
            {"estimate": FIRST},
            x_title=f"{reward}s per {unit}",
            labels=[label for label, _ in named],
            rule_at=row_of(document, "logging")["value"],
        ),
        legend={},
        columns=("estimator", "value", "interval"),
        rows=rows,
    )


def weights_figure(document: Document) -> Figure:
    """Draw how weights are spread."""
    histogram = document["histogram"]
    colors = {label: color_of(place) for place, label in enumerate(histogram["labels"])}
    shares = {
        weighing_of(document, name): dict(zip(histogram["labels"], parts, strict=True))
        for name, parts in histogram["shares"].items()
    }
    where = f" at slot {document['typical_slot']}" if document["slots"] > 1 else ""
    return share_figure(
        "weights",
        (
            f"Weights of the log's {document['unit']}s{where}",
            "A weight is how much likelier the evaluated policy shows what was logged. At 0 it "
            "never does; where few have large weights, few decide.",
            "Shares of weights by their size.",
        ),
        shares,
        colors,
        x_title=f"share of {document['unit']}s",
        columns=("weights", "size", "share"),
    )


def slots_figures(document: Document) -> list[Figure]:
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
    colors = dict(zip(names.values(), (FIRST, SECOND), strict=True))
    return [
        Figure(
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
            rows=[
                (
                    str(one["slot"]),
                    f"{one['lists']:,}",
                    per_unit(one["reward"]),
                    f"{one['effective']:,.0f}",
                    f"{one['effective_alone']:,.0f}",
                    percent(one["same_item"]),
                )
                for one in slots
            ],
        )
    ]


def sequence_figures(document: Document) -> list[Figure]:
    """Draw the confidence sequence of IPS over the log; none where weights were clipped."""
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
    name = name_of(document, "ips")
    ticks = [10**power for power in range(1, 8) if 10**power <= places[-1][0]]
    return [
        Figure(
            key="looks",
            title=f"{name}, however often one looks",
            note="With the stated confidence the value lies between the lines at all looks "
            "together, so one may stop at any of them. It is wider than the interval, whose number "
            f"of {unit}s must be settled before.",
            description="Bounds of the value after so many lists.",
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
            rows=[(f"{look:,}", per_unit(low), per_unit(high)) for look, low, high in places],
        )
    ]
