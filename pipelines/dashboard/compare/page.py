"""Page ``compare``: two to five runs on the same queries, by metric, k, slice and time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from pipelines.dashboard.compare.blocks import (
    LETTERS,
    colors,
    difference_chart,
    dot,
    interval_words,
    measures_table,
    origins,
    warnings,
)
from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.data.answers import DEPTH, SPLITS, Side, Split, side
from pipelines.dashboard.data.measures import measures_of
from pipelines.dashboard.data.paired import (
    Moments,
    Pairs,
    interval,
    moments_of,
    p_values,
    pairs_of,
)
from pipelines.dashboard.data.sides import (
    controls,
    default_pair,
    name_of,
    sides_of,
    split_control,
    suggest_runs,
)
from pipelines.dashboard.data.slices import (
    CROSS,
    CROSSED,
    Slicing,
    everything,
    label_of_group,
)
from pipelines.dashboard.data.verdict import p_words
from pipelines.dashboard.query import NotFoundError, Query, QueryError
from pipelines.pages.charts.shapes import Band, Dot, Point, banded_lines, line_chart
from pipelines.pages.columns import counts, numbers, texts
from pipelines.pages.document import (
    Block,
    Cell,
    Chart,
    Control,
    Link,
    LinkedCell,
    Option,
    Page,
    Section,
    Table,
    Words,
)
from pipelines.pages.wording import METRICS, metric_label, metric_meaning
from recsys.evaluation.significance import holm

KS = (1, 2, 3, 5, 10, 20, 50, 100)
FAMILY = ("ndcg@10", "recall@10", "mrr@10", "ndcg@50", "recall@50")
CONFIDENCE = 0.95
LEVEL = 0.05
NUM_PERIODS = 12
EXPORTED_GROUPS = ("item_popularity", "category", "domain")
MIN_USERS = 20
"""Slices with fewer users are listed without an interval in the chart."""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What the page is about."""

    pairs: Pairs
    sides: Sequence[Side]
    names: Sequence[str]
    metric: str
    """Without its k, such as ndcg."""
    k: int
    group: str
    """Of the slices."""

    @property
    def named(self) -> str:
        return f"{self.metric}@{self.k}"


def build(context: Context, query: Query) -> Page:
    """Make the page."""
    split: Split = "validation" if query.choice("split", SPLITS, "test") == "validation" else "test"
    sides = sides_of(context, query, split)
    pairs = pairs_of(context, sides, split)
    names = [name_of(one, sides) for one in sides]
    single = pairs.slicings.groups
    groups = [*single, *(CROSS.join(pair) for pair in CROSSED if {*pair} <= {*single})]
    shown = Shown(
        pairs=pairs,
        sides=sides,
        names=names,
        metric=query.choice("metric", METRICS, "ndcg"),
        k=query.number("k", 10, least=1, most=DEPTH),
        group=query.choice("group", groups, groups[0]) if groups else "",
    )
    if not len(pairs.known):
        return Page(
            title="Compare",
            lead="These runs have no query in common, so nothing can be compared.",
            blocks=[Words(lines=warnings(pairs.known, names), tone="bad")],
            controls=controls(context, sides, split),
        )
    measures = [measures_of(context, one, split) for one in sides]
    return Page(
        title="Compare " + " and ".join(names),
        lead=f"{len(pairs.known):,} queries of {pairs.known.num_users:,} users that all of them "
        f"answered, split {split}. Differences are from {names[0]}.",
        blocks=[
            *metrics_blocks(shown),
            Section(key="by-k", title="By list length", blocks=[k_chart(shown)]),
            *slice_sections(shown),
            *time_sections(shown),
            Section(
                key="beside",
                title="Beside accuracy",
                blocks=[measures_table(measures, names, sides)],
            ),
            Words(lines=["Where to look next:"], links=links(shown)),
        ],
        controls=[*controls(context, sides, split), *own_controls(shown, groups, split)],
        notices=[*warnings(pairs.known, names), *pairs.slicings.problems],
    )


def own_controls(shown: Shown, groups: Sequence[str], split: Split) -> list[Control]:
    """Let metric, list length, slices and split be chosen."""
    metrics = [Option(value=name, label=METRICS[name][0].format(k="k")) for name in METRICS]
    found = [
        Control(name="metric", label="Metric", kind="select", value=shown.metric, options=metrics),
        Control(name="k", label="k", kind="number", value=str(shown.k), least=1, most=DEPTH),
    ]
    if groups:
        options = [Option(value=group, label=group_label(group)) for group in groups]
        found.append(
            Control(name="group", label="Slices", kind="select", value=shown.group, options=options)
        )
    return [*found, split_control(shown.sides, split)]


def group_label(group: str) -> str:
    """Title the slices of a slicing."""
    return f"By {label_of_group(group)}"


def metrics_blocks(shown: Shown) -> list[Block]:
    """Compare by a family of metrics, corrected together; a chart and a table."""
    whole = everything(len(shown.pairs.known))
    metrics = list(dict.fromkeys((shown.named, *FAMILY)))
    tests: list[tuple[str, int, Moments]] = [
        (metric, place, shown.pairs.moments(0, place, whole, metric))
        for metric in metrics
        for place in range(1, len(shown.sides))
    ]
    adjusted = holm(np.array([p_values(found)[0] for _, _, found in tests]))
    rows: list[list[Cell | LinkedCell]] = []
    dots = []
    for (metric, place, found), p_value in zip(tests, adjusted, strict=True):
        first, second = float(found.first[0]), float(found.second[0])
        differs = p_value <= LEVEL
        verdict = "no difference shown"
        if differs:
            verdict = "better" if second > first else "worse"
        row: list[Cell | LinkedCell] = [
            metric_label(metric), shown.names[place], first, second, second - first,
            interval_words(found, 0, CONFIDENCE), p_words(float(p_value)), verdict,
            metric_meaning(metric),
        ]  # fmt: skip
        rows.append(row)
        if first > 0:
            dots.append(dot(metric_label(metric), shown.names[place], found, 0, CONFIDENCE))
    table = Table(
        key="metrics",
        title="Metrics on the same queries",
        note=f"Means over users. Intervals hold the true difference in {CONFIDENCE:.0%} of samples "
        f"of such users, each by itself. p is corrected for all {len(tests)} tests of this table "
        f"(Holm): if none of the sides differed, one or more would be called different in at most "
        f"{LEVEL:.0%} of cases.",
        columns=[
            *texts("metric", "side"),
            *numbers(shown.names[0], "side's mean", format="metric"),
            *numbers("difference", format="signed"),
            *texts("interval", note=f"{CONFIDENCE:.0%}, of the difference"),
            *texts("adjusted p", note="Holm, over the whole table"),
            *texts("in words", "what it says"),
        ],
        rows=rows,
        origins=origins(shown.sides),
    )
    chart = difference_chart(
        "differences",
        f"Differences from {shown.names[0]}",
        "Each dot is a difference as a share of the first side's mean, each line its 95% "
        "interval. A line that does not touch 0 shows a difference, before correction.",
        dots,
        shown.sides,
    )
    return [chart, table]


def k_chart(shown: Shown) -> Chart:
    """Draw the metric of each side by the length of the list."""
    whole = everything(len(shown.pairs.known))
    points = []
    for k in KS:
        for place, name in enumerate(shown.names):
            found = shown.pairs.moments(0, place, whole, f"{shown.metric}@{k}")
            value = round(float(found.second[0]), 5)
            note = f"{name}: {metric_label(f'{shown.metric}@{k}')} {value:.4f}"
            points.append(Point(x=k, y=value, series=name, note=note))
    palette = colors(shown.names)
    label = METRICS[shown.metric][0].format(k="k")
    return Chart(
        key="k",
        title=f"{label} by list length",
        note="Where the lines part says how far down the list the sides differ: at the left, in "
        "the first places; only at the right, further down than most users look.",
        description=f"{label} of {len(shown.names)} sides at {len(KS)} list lengths.",
        spec=line_chart(
            points, palette, x_title="k, places of the list", y_title=label, x_values=KS
        ),
        columns=("k", "side", label),
        rows=[(point.x, point.series, point.y) for point in points],
        legend=palette,
        origins=origins(shown.sides),
    )


def slice_sections(shown: Shown) -> list[Section]:
    """Compare by slice of the chosen slicing."""
    slicing = shown.pairs.slicings.get(shown.group) if shown.group else None
    if slicing is None:
        return []
    rows, dots = slice_rows(shown, slicing)
    label = metric_label(shown.named)
    blocks: list[Block] = []
    if dots:
        chart = difference_chart(
            "slices",
            f"{label} by slice: differences from {shown.names[0]}",
            f"Slices with at least {MIN_USERS} users. A slice whose line lies left of 0 is served "
            "worse; the table has the corrected p-values.",
            dots,
            shown.sides,
        )
        blocks.append(chart)
    blocks.append(
        Table(
            key="slice-table",
            title=f"{label} by slice",
            note="p is corrected for all rows of this table (Holm). A user counts in a slice by "
            "the held-out items that are in it.",
            columns=[
                *texts("slice", "side"),
                *counts("users"),
                *numbers(shown.names[0], "side's mean", format="metric"),
                *numbers("difference", format="signed"),
                *texts("interval", "adjusted p"),
            ],
            rows=rows,
            origins=origins(shown.sides),
        )
    )
    return [Section(key="slices-section", title=group_label(shown.group), blocks=blocks)]


def slice_rows(shown: Shown, slicing: Slicing) -> tuple[list[list[Cell | LinkedCell]], list[Dot]]:
    """Test each slice of each side."""
    found = [
        shown.pairs.moments(0, place, slicing, shown.named) for place in range(1, len(shown.sides))
    ]
    tests = [
        (place, code)
        for code in range(len(slicing.names))
        for place, one in enumerate(found)
        if one.num_users[code] > 0
    ]
    by_side = [p_values(one) for one in found]
    adjusted = holm(np.array([by_side[place][code] for place, code in tests]))
    rows: list[list[Cell | LinkedCell]] = []
    dots = []
    for (place, code), p_value in zip(tests, adjusted, strict=True):
        one, name = found[place], shown.names[place + 1]
        row: list[Cell | LinkedCell] = [
            slicing.names[code], name, int(one.num_users[code]), float(one.first[code]),
            float(one.second[code]), float(one.difference[code]),
            interval_words(one, code, CONFIDENCE), p_words(float(p_value)),
        ]  # fmt: skip
        rows.append(row)
        if one.num_users[code] >= MIN_USERS and one.first[code] > 0:
            dots.append(dot(slicing.names[code], name, one, code, CONFIDENCE))
    return rows, dots


def time_sections(shown: Shown) -> list[Section]:
    """Draw differences over the time of the queries, where there are times."""
    blocks = shown.pairs.slicings.blocks(NUM_PERIODS)
    if blocks is None:
        words = "These queries have no times, or not all of them, so nothing is drawn over time."
        return [Section(key="time", title="Over time", blocks=[Words(lines=[words])])]
    middles = [datetime.fromtimestamp(int(name), UTC) for name in blocks.names]
    bands = []
    for place in range(1, len(shown.sides)):
        found = moments_of(shown.pairs.values(0, place, blocks, shown.named))
        low, high = interval(found, CONFIDENCE)
        name = shown.names[place]
        for code, middle in enumerate(middles):
            mean = round(float(found.difference[code]), 5)
            ends = [round(float(end[code]), 5) for end in (low, high)]
            note = f"{middle:%Y-%m-%d}, {name}: {mean:+.4f} ({ends[0]:+.4f} to {ends[1]:+.4f})"
            bands.append(
                Band(
                    day=middle.isoformat(), mean=mean, low=ends[0], high=ends[1], note=note,
                    series=name,
                )
            )  # fmt: skip
    palette = {name: colors(shown.names)[name] for name in shown.names[1:]}
    label = metric_label(shown.named)
    chart = Chart(
        key="over-time",
        title=f"Difference in {label} over the time of the query",
        note=f"{len(middles)} blocks of equally many queries, with 95% intervals over users. A "
        "line that keeps to one side of 0 says that the difference is no matter of one week.",
        description=f"{len(bands)} differences over time.",
        spec=banded_lines(
            bands,
            palette,
            x_title="time of the query (UTC)",
            y_title="difference (above 0: better)",
        ),
        columns=("time", "side", "difference", "low", "high"),
        rows=[(one.day, one.series, one.mean, one.low, one.high) for one in bands],
        legend=palette,
        origins=origins(shown.sides),
    )
    return [Section(key="time", title="Over time", blocks=[chart])]


def links(shown: Shown) -> list[Link]:
    """Lead to the pages that explain a difference."""
    first, second = shown.sides[0], shown.sides[1]
    pair = pair_parameters(first, second)
    label = f"{LETTERS[0]} or {LETTERS[1]}: which to release, and why"
    found = [
        Link(label=label, page="summary", parameters=pair),
        Link(label="Users won and lost between the first two", page="why", parameters=pair),
        Link(label="How models age between trainings", page="replay"),
    ]
    if "runs" in pair:
        runs = {"runs": pair["runs"]}
        found.append(
            Link(label="Differences of their settings", page="differences", parameters=runs)
        )
    return found


def pair_parameters(first: Side, second: Side) -> dict[str, str | tuple[str, ...]]:
    """Name two sides as the address of a page does."""
    if first.run.key == second.run.key:
        return {"run": first.run.key, "first": first.model, "second": second.model}
    return {
        "runs": (first.run.key, second.run.key),
        "model1": first.model,
        "model2": second.model,
    }


def exports(context: Context, query: Query) -> list[Query]:
    """Let a file hold the models of its run, and its pair by a few slicings and metrics."""
    found = [query]
    try:
        runs = query.several("runs", at_most=2)
        pair = [context.stores.run(key) for key in runs]
        if len(pair) < 2:
            pair = [*default_pair(context, "test", query.text("run"))]
        sides = [side(run, "test") for run in pair]
        groups = pairs_of(context, sides, "test").slicings.groups
    except (NotFoundError, QueryError):
        return found
    base = Query.of(**pair_parameters(*sides))
    chosen = [{"group": group} for group in EXPORTED_GROUPS if group in groups]
    variants: list[dict[str, str]] = [{}, *chosen, {"metric": "recall"}, {"metric": "mrr"}]
    values = [{name: (value,) for name, value in variant.items()} for variant in variants]
    return [*found, *(Query({**base.values, **one}) for one in values)]


ENTRY = PageEntry(
    name="compare",
    title="Compare",
    build=build,
    suggest={"runs": suggest_runs},
    exports=exports,
    keeps=("runs", "run", "first", "second"),
)
