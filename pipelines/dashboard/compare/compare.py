"""Page ``compare``: two to five sides on the same queries, by metric, k and slice."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.data.answers import COSTS, DEPTH, Measures, Side, cost_words, read_measures
from pipelines.dashboard.data.pairs import Mask, Pairs, join_pairs
from pipelines.dashboard.data.sides import (
    choose_sides,
    controls,
    k_control,
    origins,
    pair_links,
    pair_parameters,
    side_name,
    suggest_runs,
)
from pipelines.dashboard.data.slices import group_label
from pipelines.dashboard.query import Query
from pipelines.pages.charts import Row, colors_of, counts, figure, interval_chart, numbers, texts
from pipelines.pages.document import (
    Block,
    Cell,
    Chart,
    Column,
    Link,
    Page,
    Section,
    Table,
    Words,
    select,
)
from pipelines.pages.wording import METRICS, metric_label, metric_meaning
from recsys.evaluation.config import PairedConfig
from recsys.evaluation.paired import SIGNIFICANCE_LEVEL, Paired, paired
from recsys.evaluation.significance import holm


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


FAMILY = ("ndcg@10", "recall@10", "mrr@10", "ndcg@50", "recall@50")
RULE = PairedConfig(confidence=1 - SIGNIFICANCE_LEVEL)
MIN_USERS = 20
"""Slices with fewer users are listed without an interval in the chart."""


Difference = tuple[str, str, Paired]
"""Label of a test, name of the side, and the side against the first."""


def build(context: Context, query: Query) -> Page:
    """Build the page."""
    sides = choose_sides(context, query)
    pairs = join_pairs(context, sides)
    names = [side_name(one, sides) for one in sides]
    own = controls(context, sides)
    if not len(pairs):
        lead = "These runs have no query in common, so nothing can be compared."
        words = Words(lines=warnings(pairs, names), tone="bad")
        return Page(title="Compare", lead=lead, blocks=[words], controls=own)
    groups = {one: f"By {group_label(one)}" for one in pairs.slices.groups}
    group = query.choice("group", groups, next(iter(groups))) if groups else ""
    metric, k = query.choice("metric", METRICS, "ndcg"), query.number("k", 10, least=1, most=DEPTH)
    measures = measures_table([read_measures(context, one) for one in sides], names, sides)
    pair = pair_parameters(sides[0], sides[1])
    summary = Link(label="A or B: which to release, and why", page="summary", parameters=pair)
    by_slice = [_slices_section(pairs, names, group, f"{metric}@{k}")] if groups else []
    return Page(
        title="Compare " + " and ".join(names),
        lead=f"{len(pairs):,} queries of {pairs.num_users:,} users that all of them "
        f"answered, split {pairs.split}. Differences are from {names[0]}.",
        blocks=[
            *_metrics_blocks(pairs, names, f"{metric}@{k}"),
            *by_slice,
            Section(key="beside", title="Beyond accuracy", blocks=[measures]),
            Words(lines=["Next:"], links=[summary, *pair_links(sides)]),
        ],
        controls=[
            *own,
            select(
                "metric", "Metric", metric, {one: METRICS[one][0].format(k="k") for one in METRICS}
            ),
            k_control(k, DEPTH),
            *([select("group", "Slices", group, groups)] if groups else []),
        ],
        notices=[*warnings(pairs, names), *pairs.slices.problems],
    )


def _differences(
    pairs: Pairs, names: Sequence[str], metric: str, inside: Mask | None = None
) -> list[tuple[str, Paired]]:
    """Compare each other side with the first, by its name."""
    first, *others = (pairs.values(place, metric, inside) for place in range(len(names)))
    found = (paired(first, other, RULE) for other in others)
    return list(zip(names[1:], found, strict=True))


def _metrics_blocks(pairs: Pairs, names: Sequence[str], chosen: str) -> list[Block]:
    """Compare by a family of metrics."""
    tests = [
        (metric_label(metric), name, found)
        for metric in dict.fromkeys((chosen, *FAMILY))
        for name, found in _differences(pairs, names, metric)
    ]
    note = f"Means over users. {metric_label(chosen)}: {metric_meaning(chosen)}."
    return _tests_blocks(pairs, names, "metrics", "Metrics on the same queries", note, tests)


def _slices_section(pairs: Pairs, names: Sequence[str], group: str, metric: str) -> Section:
    """Compare by slice of a group."""
    tests = [
        (slice_, name, found)
        for slice_, inside in pairs.slices.get(group).items()
        if inside.any()
        for name, found in _differences(pairs, names, metric, inside)
    ]
    title = f"{metric_label(metric)} by slice"
    note = "A user counts in a slice by the held-out items that are in it."
    return Section(
        key="slices-section",
        title=f"By {group_label(group)}",
        blocks=_tests_blocks(pairs, names, "slice-table", title, note, tests),
    )


def _tests_blocks(
    pairs: Pairs, names: Sequence[str], key: str, title: str, note: str, tests: Sequence[Difference]
) -> list[Block]:
    """Draw and list tests of one kind, corrected together."""
    rows: list[list[Cell]] = []
    drawn: list[Row] = []
    p_values = holm(np.array([found.p_value for *_, found in tests]))
    for (label, name, found), p_value in zip(tests, p_values, strict=True):
        verdict = "no difference shown"
        if p_value <= SIGNIFICANCE_LEVEL:
            verdict = "better" if found.difference > 0 else "worse"
        p_words = "below 0.0001" if p_value < 1e-4 else f"{p_value:.4f}"
        means = (found.champion, found.challenger, found.difference)
        ends = f"{found.low:+.4f} to {found.high:+.4f}"
        rows.append([label, name, found.num_users, *means, ends, p_words, verdict])
        if found.champion > 0 and found.num_users >= MIN_USERS:
            drawn.append(difference_row(label, name, found))
    chart = differences_chart(
        f"{title}: differences from {names[0]}",
        "Each dot is a difference as a share of the first side's mean, each line its 95% "
        "interval. A line that does not touch 0 shows a difference, before correction.",
        drawn,
        pairs.sides,
        key="slices" if key == "slice-table" else "differences",
    )
    table = Table(
        key=key,
        title=title,
        note=f"{note} Intervals hold the true difference in 95% of samples of such users, each by "
        f"itself. p is corrected for all {len(rows)} tests of this table (Holm): if none differed, "
        f"one or more would be called different in at most {SIGNIFICANCE_LEVEL:.0%} of cases.",
        columns=[
            *texts("slice" if key == "slice-table" else "metric", "side"),
            *counts("users"),
            *numbers(names[0], "side's mean", format="metric"),
            *numbers("difference", format="signed"),
            *texts("interval", note="95%, of the difference"),
            *texts("adjusted p", note="Holm, over the whole table"),
            *texts("in words"),
        ],
        rows=rows,
        origins=origins(pairs.sides),
    )
    return [chart, table] if drawn else [table]


ENTRY = PageEntry(
    name="compare",
    title="Compare",
    build=build,
    suggest={"runs": suggest_runs},
    keeps=("runs", "run", "first", "second"),
)
