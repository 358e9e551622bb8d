"""Blocks of both pages of comparisons: differences as a chart, warnings, measures and costs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipelines.dashboard.compare.gate import PairJudgement
from pipelines.dashboard.data.answers import Joined, Side
from pipelines.dashboard.data.measures import COSTS, Measures, cost_words
from pipelines.dashboard.data.paired import Moments, interval, p_values
from pipelines.dashboard.data.sides import origins
from pipelines.dashboard.data.slices import slice_label
from pipelines.pages.charts import Row, colors_of, counts, figure, interval_chart, numbers, texts
from pipelines.pages.document import Cell, Chart, Column, LinkedCell, Table
from pipelines.pages.wording import metric_label, metric_meaning
from pipelines.publishing.comparison import MIN_SLICE_USERS
from recsys.evaluation.significance import holm

FEW = 0.5
"""Share of a side's queries below which those in common may not represent all."""
CONFIDENCE = 0.95
LEVEL = 0.05
Difference = tuple[str, str, Moments, int]
"""Label of the row, name of the side, moments, and place of the slice in them."""
MIN_USERS = 20
"""Slices with fewer users are listed without an interval in the chart."""
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


def difference_row(label: str, side: str, ends: tuple[float, float, float], words: str) -> Row:
    """Build the row of a relative difference and the ends of its interval, in percent."""
    return (label, side, *(round(100 * value, 3) for value in ends), words)


def differences_chart(
    key: str, title: str, note: str, rows: Sequence[Row], sides: Sequence[Side]
) -> Chart:
    """Draw the rows of `difference_row` around 0."""
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
        x_title="relative difference, % (below 0: worse)",
        rule_at=0,
        origins=origins(sides),
    )


def run_tests(
    tests: Sequence[Difference],
) -> tuple[list[list[Cell]], list[Row]]:
    """Test differences, corrected together, as rows of a table and dots of a chart."""
    adjusted = holm(np.array([p_values(found)[code] for *_, found, code in tests]))
    rows: list[list[Cell]] = []
    drawn = []
    for (label, name, found, code), p_value in zip(tests, adjusted, strict=True):
        first, second = float(found.first[code]), float(found.second[code])
        low, high = (float(end[code]) for end in interval(found, CONFIDENCE))
        users, difference = int(found.num_users[code]), float(found.difference[code])
        verdict = "no difference shown"
        if p_value <= LEVEL:
            verdict = "better" if difference > 0 else "worse"
        numbers_ = (users, first, second, difference, f"{low:+.4f} to {high:+.4f}")
        p_words = "below 0.0001" if p_value < 1e-4 else f"{p_value:.4f}"
        rows.append([label, name, *numbers_, p_words, verdict])
        if first > 0 and users >= MIN_USERS:
            words = (
                f"{difference / first:+.1%} ({low / first:+.1%} to {high / first:+.1%}), from "
                f"{first:.4f} to {second:.4f}, {users:,} users"
            )
            ends = (difference / first, low / first, high / first)
            drawn.append(difference_row(label, name, ends, words))
    return rows, drawn


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


def slices_table(judged: PairJudgement, sides: Sequence[Side]) -> Table:
    """Tabulate the slices, losses first."""
    config, losses = judged.config, judged.compared.losses
    order = sorted(losses, key=lambda one: (not one.harmed, not one.gained, one.name))
    rows: list[list[Cell]] = [
        [
            slice_label(one.name),
            one.found.num_users,
            one.found.champion,
            one.found.challenger,
            one.found.difference,
            f"{one.found.low:+.4f} to {one.found.high:+.4f}",
            "lost" if one.harmed else "gained" if one.gained else "not shown",
        ]
        for one in order
    ]
    return Table(
        key="slices-table",
        title=f"Slices, {metric_label(config.deciding_metric)}",
        note=f"Slices with at least {MIN_SLICE_USERS} users. Intervals are of each slice by "
        f"itself; the last column is corrected over all {len(losses):,} slices (Holm, "
        f"{config.paired().slice_error:.0%}).",
        columns=[
            *texts("slice"),
            *counts("users"),
            *numbers("A", "B", format="metric"),
            *numbers("difference", format="signed"),
            *texts("interval", "shown"),
        ],
        rows=rows,
        page_length=10,
        origins=origins(sides),
    )


def rule(judged: PairJudgement) -> list[str]:
    """Write the rule in words."""
    config = judged.config
    return [
        f"All queries: {metric_label(config.deciding_metric)} decides, each user compared with "
        f"themselves. B is better or worse if the interval excludes 0 at {config.confidence:.0%}, "
        f"over users and over blocks of time; a loss within {config.max_loss:.0%} is tolerated. "
        f"What loses by {metric_label(config.metric)}, in the first places, is refused too.",
        f"Slices: B is refused if a slice of at least {MIN_SLICE_USERS} users is shown to lose "
        f"more than {config.max_slice_loss:.0%}; over all slices together a false alarm has a "
        f"chance of {config.paired().slice_error:.0%}. Smaller slices can lose unseen.",
        f"Lists: B is refused if their coverage is below {config.gate.min_coverage:.0%} of A's, or "
        f"their novelty below {config.gate.min_novelty:.0%}. If nothing is shown, the cheaper one "
        "of two is preferred.",
        "The margins are those of [release] of B. The statistics are on other users of the same "
        "kind: not on another seed, other weeks, or what users would do with the lists. An online "
        "experiment is. The recorded answer of the gate is on queries that neither bundle's models "
        "had seen then; this page has those whose answers both stored.",
    ]
