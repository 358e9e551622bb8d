"""The figures of a backtest: lines over steps, and how models age."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.pages.backtest.words import (
    PEER,
    SERVED,
    Document,
    relative_to_full,
    whole_peers,
)
from pipelines.pages.charts.shapes import Point, SeriesBand, banded_lines, line_chart
from pipelines.pages.charts.style import SECOND, color_of
from pipelines.pages.document import Chart
from pipelines.pages.figure import percent, written
from pipelines.pages.wording import metric_label, model_label

MAX_LINES = 8
NUM_PEERS = 3
Names = Sequence[tuple[str, str, str]]
"""Policy, row, name of the line."""


def figures_of(document: Document) -> dict[str, list[Chart]]:
    """Draw every figure, by section."""
    policies = [(policy, SERVED, policy) for policy in document["policies"]]
    peers = [(PEER, one["row"], one["row"]) for one in whole_peers(document)[:NUM_PEERS]]
    first = next(iter(document["policies"]))
    members = [
        (first, row, model_label(row))
        for row in dict.fromkeys(one["row"] for one in document["rows"] if one["policy"] == first)
    ]
    return {
        "policies": [
            lines_figure(
                document,
                [*policies, *peers],
                "policies",
                "The served list of each policy over time, and the best peers",
            ),
            *freshness(document),
        ],
        "members": [
            lines_figure(
                document,
                members[:MAX_LINES],
                "members",
                f"The served list and its sources, policy {first}",
            )
        ],
    }


def lines_figure(document: Document, names: Names, key: str, title: str) -> Chart:
    """Draw rows over the steps; bands are one standard error to each side."""
    metric = document["metric"]
    begins = {step["number"]: step["begin"] for step in document["steps"]}
    series = {(policy, row): name for policy, row, name in names}
    bands, rows = [], []
    for one in document["rows"]:
        name = series.get((one["policy"], one["row"]))
        if name is None or "error" in one:
            continue
        value, error = one["metrics"][metric], one["standard_errors"][metric]
        begin = begins[one["step"]]
        low = max(0.0, value - error)
        note = f"{name}, step {one['step']} ({begin[:10]}): {written(value)} ± {written(error)}"
        bands.append(
            SeriesBand(
                day=begin.replace(" ", "T"),
                mean=value,
                low=low,
                high=value + error,
                note=note,
                series=name,
            )
        )
        rows.append((str(one["step"]), begin, name, written(value), written(error)))
    colors = {name: color_of(place) for place, name in enumerate(series.values())}
    return Chart(
        key=key,
        title=title,
        note="Bands: ± one standard error over queries.",
        description=f"{metric_label(metric)} of {', '.join(colors)} by the step's start.",
        spec=banded_lines(
            bands, colors, x_title="start of the step (UTC)", y_title=metric_label(metric)
        ),
        legend=colors,
        columns=("step", "start", "list", metric_label(metric), "standard error"),
        rows=rows,
    )


def freshness(document: Document) -> list[Chart]:
    """Draw what is kept of fresh models' quality by the age of models; needs both policies."""
    ages = relative_to_full(document, "never")
    if len(ages) < 2:
        return []
    points = [
        Point(x=age, y=share, series="never", note=f"{age:,.1f} days: {percent(share)}")
        for _, age, share in ages
    ]
    colors: Mapping[str, str] = {"never": SECOND}
    spec: dict[str, Any] = line_chart(
        points,
        colors,
        x_title="age of the models, days",
        y_title="quality relative to fresh models",
        y_format=".0%",
        from_zero=True,
    )
    return [
        Chart(
            key="freshness",
            title="Quality by age of the models",
            note="The served list of models that are never retrained, relative to that of models "
            "retrained before every step.",
            description="Quality relative to fresh models by the age of the models.",
            spec=spec,
            legend={},
            columns=("step", "age, days", "relative quality"),
            rows=[(str(step), f"{age:,.1f}", percent(share)) for step, age, share in ages],
        )
    ]
