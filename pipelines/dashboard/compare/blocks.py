"""Blocks of both pages of comparisons: differences as a chart, warnings, measures and costs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pipelines.dashboard.data.answers import Side
from pipelines.dashboard.data.measures import COSTS, Measures, cost_words
from pipelines.dashboard.data.pairs import Pairs
from pipelines.dashboard.data.sides import origins
from pipelines.pages.charts import Row, colors_of, figure, interval_chart, numbers, texts
from pipelines.pages.document import Cell, Chart, Column, Table
from pipelines.pages.wording import metric_label, metric_meaning
from recsys.evaluation.paired import Paired


def warnings(pairs: Pairs, names: Sequence[str]) -> list[str]:
    """List what makes sides less comparable, and the queries that are left out."""
    found = []
    first = pairs.sides[0].run
    for one, name in zip(pairs.sides[1:], names[1:], strict=True):
        run = one.run
        if run.data_digest != first.data_digest and run.data_digest and first.data_digest:
            found.append(
                f"{name} was measured on other data than {names[0]}: only the queries that "
                "both have are compared, and one may have learned from more events."
            )
    for answered, name in zip(pairs.num_answered, names, strict=True):
        if len(pairs) < answered:
            found.append(
                f"{len(pairs):,} of the {answered:,} queries of {name} are compared; the others "
                "have another user, held-out item or number of events before it."
            )
    return found


def difference_words(found: Paired) -> str:
    """Format a difference with its interval, such as ``+3.1% (+1.0% to +5.2%)``."""
    low, high = found.relative_interval
    return (
        f"{found.relative:+.1%} ({low:+.1%} to {high:+.1%}), from {found.champion:.4f} to "
        f"{found.challenger:.4f}, {found.num_users:,} users"
    )


def difference_row(label: str, side: str, found: Paired, more: str = "") -> Row:
    """Build the row of a relative difference and the ends of its interval, in percent."""
    ends = (found.relative, *found.relative_interval)
    return (label, side, *(round(100 * end, 3) for end in ends), difference_words(found) + more)


def differences_chart(
    title: str,
    note: str,
    rows: Sequence[Row],
    sides: Sequence[Side],
    *,
    key: str = "slices",
    drawn: Collection[Cell] | None = None,
) -> Chart:
    """Draw the rows of `difference_row` around 0: all, or those with the given labels."""
    return figure(
        interval_chart,
        key,
        title,
        note,
        [*texts("row", "side"), *numbers("difference, %", "low, %", "high, %"), *texts("in words")],
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
    rows: list[list[Cell]] = []
    for kind in dict.fromkeys(name for one in measures for name in one.beyond_accuracy):
        values = [one.beyond_accuracy.get(kind) for one in measures]
        shown = ["not measured" if value is None else f"{value:.4g}" for value in values]
        rows.append([metric_label(kind), *shown, metric_meaning(kind)])
    for name, label in COSTS.items() if len({one.run.key for one in sides}) > 1 else ():
        costs = [one.costs.get(name) for one in measures]
        shown = ["not known" if cost is None else cost_words(name, cost) for cost in costs]
        rows.append([label.capitalize(), *shown, "of the run, and of its bundle"])
    return Table(
        key="measures",
        title="Beyond accuracy, and what it costs",
        note="Of each side's first 10 items for every measured user; times and memory compare on "
        "the same machine only.",
        columns=[
            *texts("measure"),
            *(Column(label=name, numeric=True) for name in names),
            *texts("what it says"),
        ],
        rows=rows,
        origins=origins(sides),
    )
