"""Blocks of both pages of comparisons: differences as a chart, warnings, measures and costs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pipelines.dashboard.data.answers import Joined, Side
from pipelines.dashboard.data.measures import COSTS, Measures, cost_words
from pipelines.dashboard.data.sides import origins
from pipelines.pages.charts import Row, colors_of, figure, interval_chart, numbers, texts
from pipelines.pages.document import Cell, Chart, Column, LinkedCell, Table
from pipelines.pages.wording import metric_label, metric_meaning

FEW = 0.5
"""Share of a side's queries below which those in common may not represent all."""
DATA_SETTINGS = ("data.", "splits.", "evaluation.", "features.")
COST_NOTES = {
    "seconds": "all stages of the run together; comparable on the same machine only",
    "peak_memory": "of the stage that needed most",
    "bundle_bytes": "all files of the bundle",
    "list_ms": "median time in which the release gate had a list made; load is on the page Serving",
}


def warnings(known: Joined, names: Sequence[str]) -> list[str]:
    """List what makes sides less comparable, and the queries that are left out."""
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
            few = " That is few: they may not represent the others." if share < FEW else ""
            found.append(
                f"{len(known):,} of the {dropped.num_queries:,} queries of {name} are compared; "
                f"left out: {dropped.words}.{few}"
            )
    return found


def difference_row(label: str, side: str, ends: Sequence[float], words: str) -> Row:
    """Build the row of a relative difference and the ends of its interval, in percent."""
    return (label, side, *(round(100 * value, 3) for value in ends), words)


def differences_chart(
    key: str,
    title: str,
    note: str,
    rows: Sequence[Row],
    sides: Sequence[Side],
    drawn: Collection[Cell] | None = None,
) -> Chart:
    """Draw the rows of `difference_row` around 0: all, or those with the given labels."""
    return figure(
        interval_chart,
        key,
        title,
        note,
        [
            *texts("row", "side"),
            *numbers("difference, %", "low, %", "high, %"),
            *texts("in words"),
        ],
        rows,
        "label series mean low high -",
        # The others are compared with the first side, so theirs are the next colours.
        colors=colors_of(list(dict.fromkeys(str(row[1]) for row in rows)), first=1),
        shown=lambda row: drawn is None or row[0] in drawn,
        x_title="relative difference, % (below 0: worse)",
        rule_at=0,
        origins=origins(sides),
    )


def measures_table(
    measures: Sequence[Measures], names: Sequence[str], sides: Sequence[Side]
) -> Table:
    """List measures beyond accuracy and costs, a column a side."""
    rows: list[list[Cell | LinkedCell]] = []
    for kind in dict.fromkeys(name for one in measures for name in one.beyond_accuracy):
        values = [one.beyond_accuracy.get(kind) for one in measures]
        shown = ["not measured" if value is None else f"{value:.4g}" for value in values]
        rows.append([metric_label(kind), *shown, _change(values), metric_meaning(kind)])
    for name, label in COSTS.items() if len({one.run.key for one in sides}) > 1 else ():
        values = [one.costs.get(name) for one in measures]
        shown = ["not known" if value is None else cost_words(name, value) for value in values]
        rows.append([label.capitalize(), *shown, _change(values), COST_NOTES[name]])
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
        origins=origins(sides),
    )


def _change(values: Sequence[float | None]) -> str:
    first = values[0]
    return ", ".join(
        f"{value / first - 1:+.1%}" if first and value is not None else "-" for value in values[1:]
    )
