"""Page ``compare``: two to five sides on the same queries, by metric, k, slice and time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipelines.dashboard.compare.blocks import (
    difference_row,
    differences_chart,
    measures_table,
    warnings,
)
from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.data.answers import DEPTH, Side, side
from pipelines.dashboard.data.measures import read_measures
from pipelines.dashboard.data.paired import Moments, Pairs, interval, join_pairs, p_values
from pipelines.dashboard.data.sides import (
    choose_sides,
    controls,
    default_pair,
    group_control,
    k_control,
    origins,
    pair_links,
    pair_parameters,
    side_name,
    suggest_runs,
)
from pipelines.dashboard.data.slices import CROSS, CROSSED, Slicing, everything, group_label
from pipelines.dashboard.query import NotFoundError, Query, QueryError
from pipelines.pages.charts import Row, colors_of, counts, figure, line_chart, numbers, texts
from pipelines.pages.document import (
    Block,
    Cell,
    Chart,
    Link,
    Page,
    Section,
    Table,
    Words,
    select,
)
from pipelines.pages.wording import METRICS, metric_label, metric_meaning
from recsys.evaluation.significance import holm

KS = (1, 2, 3, 5, 10, 20, 50, 100)
FAMILY = ("ndcg@10", "recall@10", "mrr@10", "ndcg@50", "recall@50")
CONFIDENCE = 0.95
LEVEL = 0.05
MIN_USERS = 20
"""Slices with fewer users are listed without an interval in the chart."""
Difference = tuple[str, str, Moments, int]
"""Label of the row, name of the side, moments, and place of the slice in them."""
EXPORTED_GROUPS = ("item_popularity", "category", "domain")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Sides, metric and list length of the page."""

    pairs: Pairs
    sides: Sequence[Side]
    names: Sequence[str]
    metric: str
    """Without its k, such as ndcg."""
    k: int

    @property
    def named(self) -> str:
        return f"{self.metric}@{self.k}"

    def differences(self, slicing: Slicing, metric: str) -> list[tuple[str, Moments]]:
        """Compute the moments of each other side against the first, by name."""
        others = list(enumerate(self.names))[1:]
        return [(name, self.pairs.moments(0, place, slicing, metric)) for place, name in others]


def build(context: Context, query: Query) -> Page:
    """Build the page."""
    sides = choose_sides(context, query)
    pairs = join_pairs(context, sides)
    names = [side_name(one, sides) for one in sides]
    single = pairs.slicings.groups
    groups = [*single, *(CROSS.join(pair) for pair in CROSSED if {*pair} <= {*single})]
    group = query.choice("group", groups, groups[0]) if groups else ""
    shown = Comparison(
        pairs=pairs,
        sides=sides,
        names=names,
        metric=query.choice("metric", METRICS, "ndcg"),
        k=query.number("k", 10, least=1, most=DEPTH),
    )
    if not len(pairs.known):
        return Page(
            title="Compare",
            lead="These runs have no query in common, so nothing can be compared.",
            blocks=[Words(lines=warnings(pairs.known, names), tone="bad")],
            controls=controls(context, sides),
        )
    measures = measures_table([read_measures(context, one) for one in sides], names, sides)
    pair = pair_parameters(sides[0], sides[1])
    summary = Link(label="A or B: which to release, and why", page="summary", parameters=pair)
    slicing = pairs.slicings.get(group) if group else None
    metrics = {name: METRICS[name][0].format(k="k") for name in METRICS}
    return Page(
        title="Compare " + " and ".join(names),
        lead=f"{len(pairs.known):,} queries of {pairs.known.num_users:,} users that all of them "
        f"answered, split {pairs.known.split}. Differences are from {names[0]}.",
        blocks=[
            *metrics_blocks(shown),
            Section(key="by-k", title="By list length", blocks=[k_chart(shown)]),
            *([slices_section(shown, slicing)] if slicing else []),
            Section(key="beside", title="Beyond accuracy", blocks=[measures]),
            Words(lines=["Next:"], links=[summary, *pair_links(sides)]),
        ],
        controls=[
            *controls(context, sides),
            select("metric", "Metric", shown.metric, metrics),
            k_control(shown.k, DEPTH),
            *group_control(group, groups),
        ],
        notices=[*warnings(pairs.known, names), *pairs.slicings.problems],
    )


def run_tests(tests: Sequence[Difference]) -> tuple[list[list[Cell]], list[Row]]:
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
        p_words = "below 0.0001" if p_value < 1e-4 else f"{p_value:.4f}"
        numbers_ = (users, first, second, difference, f"{low:+.4f} to {high:+.4f}")
        rows.append([label, name, *numbers_, p_words, verdict])
        if first > 0 and users >= MIN_USERS:
            ends = (difference / first, low / first, high / first)
            words = (
                f"{ends[0]:+.1%} ({ends[1]:+.1%} to {ends[2]:+.1%}), from "
                f"{first:.4f} to {second:.4f}, {users:,} users"
            )
            drawn.append(difference_row(label, name, ends, words))
    return rows, drawn


def tests_blocks(
    shown: Comparison, key: str, title: str, note: str, tests: Sequence[Difference]
) -> list[Block]:
    """Draw and list tests of one kind."""
    rows, drawn = run_tests(tests)
    kind = "slice" if key == "slice-table" else "metric"
    chart = differences_chart(
        "slices" if kind == "slice" else "differences",
        f"{title}: differences from {shown.names[0]}",
        "Each dot is a difference as a share of the first side's mean, each line its 95% "
        "interval. A line that does not touch 0 shows a difference, before correction.",
        drawn,
        shown.sides,
    )
    table = Table(
        key=key,
        title=title,
        note=f"{note} Intervals hold the true difference in {CONFIDENCE:.0%} of samples of such "
        f"users, each by itself. p is corrected for all {len(rows)} tests of this table (Holm): if "
        f"none differed, one or more would be called different in at most {LEVEL:.0%} of cases.",
        columns=[
            *texts(kind, "side"),
            *counts("users"),
            *numbers(shown.names[0], "side's mean", format="metric"),
            *numbers("difference", format="signed"),
            *texts("interval", note=f"{CONFIDENCE:.0%}, of the difference"),
            *texts("adjusted p", note="Holm, over the whole table"),
            *texts("in words"),
        ],
        rows=rows,
        origins=origins(shown.sides),
    )
    return [chart, table] if drawn else [table]


def metrics_blocks(shown: Comparison) -> list[Block]:
    """Compare by a family of metrics."""
    whole = everything(len(shown.pairs.known))
    metrics = list(dict.fromkeys((shown.named, *FAMILY)))
    tests = [
        (metric_label(metric), name, found, 0)
        for metric in metrics
        for name, found in shown.differences(whole, metric)
    ]
    note = f"Means over users. {metric_label(shown.named)}: {metric_meaning(shown.named)}."
    return tests_blocks(shown, "metrics", "Metrics on the same queries", note, tests)


def slices_section(shown: Comparison, slicing: Slicing) -> Section:
    """Compare by slice of the chosen slicing."""
    tests = [
        (slice_, name, found, code)
        for name, found in shown.differences(slicing, shown.named)
        for code, slice_ in enumerate(slicing.names)
        if found.num_users[code] > 0
    ]
    title = f"{metric_label(shown.named)} by slice"
    note = "A user counts in a slice by the held-out items that are in it."
    return Section(
        key="slices-section",
        title=f"By {group_label(slicing.group)}",
        blocks=tests_blocks(shown, "slice-table", title, note, tests),
    )


def k_chart(shown: Comparison) -> Chart:
    """Draw the metric of each side by the length of the list."""
    whole = everything(len(shown.pairs.known))
    label = METRICS[shown.metric][0].format(k="k")
    rows: list[Row] = []
    for k in KS:
        for place, name in enumerate(shown.names):
            found = shown.pairs.moments(0, place, whole, f"{shown.metric}@{k}")
            rows.append((k, name, round(float(found.second[0]), 5)))
    return figure(
        line_chart,
        "k",
        f"{label} by list length",
        "Lines that part at the left differ in the first places; lines that part only at the "
        "right differ further down than most users look.",
        [*counts("k"), *texts("side"), *numbers(label, format="metric")],
        rows,
        "x series y",
        colors=colors_of(shown.names),
        x_title="k, places of the list",
        y_title=label,
        x_values=KS,
        origins=origins(shown.sides),
    )


def exports(context: Context, query: Query) -> list[Query]:
    """Export the models of a run, and its pair by a few slicings and metrics."""
    try:
        pair = [context.stores.run(key) for key in query.several("runs", at_most=2)]
        if len(pair) < 2:
            pair = [*default_pair(context, query.text("run"))]
        sides = [side(run) for run in pair]
        groups = join_pairs(context, sides).slicings.groups
    except (NotFoundError, QueryError):
        return [query]
    variants: list[dict[str, str]] = [{}, {"metric": "recall"}, {"metric": "mrr"}]
    variants += [{"group": group} for group in EXPORTED_GROUPS if group in groups]
    return [query, *(Query.of(**pair_parameters(*sides), **one) for one in variants)]


ENTRY = PageEntry(
    name="compare",
    title="Compare",
    build=build,
    suggest={"runs": suggest_runs},
    exports=exports,
    keeps=("runs", "run", "first", "second"),
)
