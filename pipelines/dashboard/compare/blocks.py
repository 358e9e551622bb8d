"""Parts that both pages of comparisons have: differences as a chart, warnings, measures, costs."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.dashboard.data.answers import Joined, Side
from pipelines.dashboard.data.measures import COSTS, Measures
from pipelines.dashboard.data.paired import Moments, interval
from pipelines.dashboard.data.verdict import cost_words
from pipelines.pages.charts.shapes import Dot, interval_chart
from pipelines.pages.charts.style import color_of
from pipelines.pages.columns import numbers, texts
from pipelines.pages.document import Cell, Chart, Column, LinkedCell, Origin, Table
from pipelines.pages.wording import metric_label, metric_meaning

LETTERS = "ABCDE"
FEW = 0.5
"""Share of a side's queries below which those in common may not stand for all."""
DATA_SETTINGS = ("data.", "splits.", "evaluation.", "features.")


def origins(sides: Sequence[Side]) -> list[Origin]:
    """Say what the numbers were computed from, each run once."""
    return list({one.run.key: one.run.origin for one in sides}.values())


def colors(names: Sequence[str]) -> dict[str, str]:
    """Colour each side."""
    return {name: color_of(place) for place, name in enumerate(names)}


def warnings(known: Joined, names: Sequence[str]) -> list[str]:
    """Say where sides are not quite comparable, and on which queries they are compared."""
    found = []
    first = known.sides[0].run
    for one, name in zip(known.sides[1:], names[1:], strict=True):
        run = one.run
        if run.data_digest != first.data_digest and run.data_digest and first.data_digest:
            differing = [
                f"{setting} {first.config.get(setting, '-')} and {run.config.get(setting, '-')}"
                for setting in sorted({*first.config, *run.config})
                if setting.startswith(DATA_SETTINGS)
                and first.config.get(setting) != run.config.get(setting)
            ][:4]
            why = f" ({'; '.join(differing)})" if differing else ""
            found.append(
                f"{name} was measured on other data than {names[0]}{why}: only the queries that "
                "both have are compared, and one may have learned from more events."
            )
        elif run.key != first.key and run.config_digest == first.config_digest is not None:
            found.append(
                f"{name} has the settings and data of {names[0]}: they differ by chance or code."
            )
    for dropped, name in zip(known.dropped, names, strict=True):
        if dropped.words:
            share = len(known) / dropped.num_queries if dropped.num_queries else 0.0
            few = " That is few: they may not stand for the others." if share < FEW else ""
            found.append(
                f"{len(known):,} of the {dropped.num_queries:,} queries of {name} are compared; "
                f"left out: {dropped.words}.{few}"
            )
    return found


def dot(label: str, series: str, found: Moments, code: int, confidence: float) -> Dot:
    """Mark a slice's relative difference with its interval, in percent."""
    first = float(found.first[code])
    ends = (found.difference, *interval(found, confidence))
    mean, low, high = (round(100 * float(end[code]) / first, 3) for end in ends)
    return Dot(
        label=label,
        series=series,
        mean=mean,
        low=low,
        high=high,
        note=f"{label}, {series}: {mean:+.1f}% ({low:+.1f}% to {high:+.1f}%), from {first:.4f} to "
        f"{float(found.second[code]):.4f}, {int(found.num_users[code]):,} users",
    )


def interval_words(found: Moments, code: int, confidence: float) -> str:
    """Write the interval of a slice's difference."""
    low, high = (float(end[code]) for end in interval(found, confidence))
    return f"{low:+.4f} to {high:+.4f}"


def difference_chart(
    key: str, title: str, note: str, dots: Sequence[Dot], sides: Sequence[Side]
) -> Chart:
    """Draw differences with their intervals around 0, one row a label."""
    labels = list(dict.fromkeys(dot.label for dot in dots))
    series = list(dict.fromkeys(dot.series for dot in dots))
    # The first side is what the others are held against, so theirs are the next colours.
    palette = {name: color_of(place + 1) for place, name in enumerate(series)}
    lost = sum(dot.high < 0 for dot in dots)
    won = sum(dot.low > 0 for dot in dots)
    return Chart(
        key=key,
        title=title,
        note=note,
        description=f"{len(dots)} differences with intervals; {won} lie above 0, {lost} below.",
        spec=interval_chart(
            dots,
            palette,
            x_title="relative difference, % (below 0: worse)",
            labels=labels,
            rule_at=0,
        ),
        columns=("row", "side", "difference, %", "low, %", "high, %", "in words"),
        rows=[(d.label, d.series, d.mean, d.low, d.high, d.note) for d in dots],
        legend=palette if len(series) > 1 else {},
        origins=origins(sides),
    )


def measures_table(
    measures: Sequence[Measures], names: Sequence[str], sides: Sequence[Side]
) -> Table:
    """Lay accuracy's companions and costs side by side."""
    kinds = list(dict.fromkeys(name for one in measures for name in one.beyond_accuracy))
    rows: list[list[Cell | LinkedCell]] = []
    for kind in kinds:
        values = [one.beyond_accuracy.get(kind) for one in measures]
        rows.append(
            [
                metric_label(kind),
                *("not measured" if value is None else f"{value:.4g}" for value in values),
                _change(values),
                metric_meaning(kind),
            ]
        )
    for name, label in COSTS.items() if len({one.run.key for one in sides}) > 1 else ():
        costs = [one.cost(name) for one in measures]
        rows.append(
            [
                label[:1].upper() + label[1:],
                *("not known" if cost is None else cost_words(name, cost) for cost in costs),
                _change(costs),
                COST_NOTES[name],
            ]
        )
    return Table(
        key="measures",
        title="Beyond accuracy, and what it costs",
        note="Of each side's first 10 items for every measured user; costs are those of the run "
        "and of the bundle that it released. 'not measured': the run did not.",
        columns=[
            *texts("measure"),
            *(Column(label=name, numeric=True) for name in names),
            *numbers("change", note="From the first side to each other one"),
            *texts("what it says"),
        ],
        rows=rows,
        page_length=25,
        origins=origins(sides),
    )


COST_NOTES = {
    "seconds": "all stages of the run together; comparable on the same machine only",
    "peak_memory": "of the stage that needed most",
    "bundle_bytes": "all files of the bundle",
    "list_ms": "median time in which the release gate had a list made; load is on the page Serving",
}


def _change(values: Sequence[float | None]) -> str:
    first = values[0]
    parts = []
    for value in values[1:]:
        known = first is not None and value is not None and first != 0
        parts.append(f"{(value or 0) / (first or 1) - 1:+.1%}" if known else "-")
    return ", ".join(parts)
