"""Page ``why``: who won and lost between two models, what they share, and one user looked at."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.data.items import catalogue_of, users_like
from pipelines.dashboard.data.sides import controls, split_control, suggest_runs
from pipelines.dashboard.data.slices import label_of_group
from pipelines.dashboard.data.verdict import p_words
from pipelines.dashboard.query import NotFoundError, Query, QueryError
from pipelines.dashboard.why.outcomes import OUTCOMES, lost_where, patterns
from pipelines.dashboard.why.queries import ALL, columns_of, example_users, rows_of, window_rows
from pipelines.dashboard.why.shown import LISTED, Shown, shown_of
from pipelines.dashboard.why.user import user_section
from pipelines.pages.charts.shapes import Bar, share_chart
from pipelines.pages.charts.style import color_of
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
    Rows,
    Section,
    Table,
    Tile,
    Tiles,
    Window,
    Words,
)

SHOWN_PATTERNS = 12
LEVEL = 0.05


def build(context: Context, query: Query) -> Page:
    """Make the page."""
    shown = shown_of(context, query)
    first, second = shown.names
    own = controls(context, shown.sides, shown.split, at_most=2)
    if not len(shown.pairs.known):
        words = (
            "No query was answered by both, so nobody won or lost. Choose runs on the same data."
        )
        return Page(title="Why", lead=words, blocks=[], controls=own)
    counts = np.bincount(shown.outcomes, minlength=len(OUTCOMES))
    blocks: list[Block] = [tiles(shown, counts)]
    notices = []
    user_id = query.text("user")
    if user_id:
        try:
            blocks.append(user_section(context, shown, user_id))
        except NotFoundError as error:
            notices.append(str(error))
    blocks += [
        *slice_sections(shown, query),
        *pattern_sections(shown),
        *lost_sections(context, shown),
        queries_section(context, shown, query),
    ]
    return Page(
        title=f"Why: {first} or {second}",
        lead=f"Of {len(shown.pairs.known):,} held-out items, {counts[1]:,} are in the first "
        f"{shown.k} of {first} alone, {counts[2]:,} in those of {second} alone.",
        blocks=blocks,
        controls=[*own, *own_controls(context, shown, query)],
        notices=[*notices, *shown.pairs.slicings.problems],
    )


def tiles(shown: Shown, counts: np.ndarray) -> Tiles:
    """Count the outcomes."""
    total = max(1, int(counts.sum()))
    return Tiles(
        tiles=[
            Tile(
                label=label[0].upper() + label[1:],
                value=f"{count:,}",
                note=f"{count / total:.1%} of the queries, first {shown.k}",
                link=Link(
                    label="show them",
                    page="why",
                    parameters={**shown.parameters, "outcome": outcome},
                ),
            )
            for outcome, label, count in zip(
                OUTCOMES, shown.labels.values(), counts.tolist(), strict=True
            )
        ]
    )


def own_controls(context: Context, shown: Shown, query: Query) -> list[Control]:
    """Let k, split, slices, outcome, user and item be chosen."""
    groups = shown.pairs.slicings.groups
    found = [
        Control(name="k", label="k", kind="number", value=str(shown.k), least=1, most=LISTED),
        split_control(shown.sides, shown.split),
    ]
    if groups:
        options = [Option(value=group, label=f"By {label_of_group(group)}") for group in groups]
        group = query.choice("group", groups, groups[0])
        found.append(
            Control(name="group", label="Slices", kind="select", value=group, options=options)
        )
    outcomes = [Option(value=ALL, label="all")]
    outcomes += [Option(value=name, label=label) for name, label in shown.labels.items()]
    value = query.choice("outcome", (ALL, *OUTCOMES), ALL)
    found.append(
        Control(name="outcome", label="Queries", kind="select", value=value, options=outcomes)
    )
    if not context.exported and shown.features is not None:
        for name, label in (("user", "User"), ("item", "Held-out item")):
            text = query.text(name)
            title = text
            if name == "item" and text:
                catalogue = catalogue_of(context, shown.features)
                title = catalogue.title(catalogue.row_of(text) or 0)
            options = [Option(value=text, label=title)] if text else []
            found.append(
                Control(
                    name=name,
                    label=label,
                    kind="search",
                    value=text,
                    options=options,
                    suggest=f"{name}s",
                )
            )
    return found


def slice_sections(shown: Shown, query: Query) -> list[Section]:
    """Draw the outcomes of each slice of the chosen slicing."""
    groups = shown.pairs.slicings.groups
    slicing = None
    if groups:
        slicing = shown.pairs.slicings.get(query.choice("group", groups, groups[0]))
    if slicing is None:
        return []
    labels = list(shown.labels.values())
    bars, rows = [], []
    for code, name in enumerate(slicing.names):
        inside = shown.outcomes[slicing.queries[slicing.codes == code]]
        counts = np.bincount(inside, minlength=len(OUTCOMES))
        if not counts.sum():
            continue
        rows.append((name, int(counts.sum()), *counts.tolist()))
        bars += [
            Bar(
                label=name,
                series=label,
                share=count / counts.sum(),
                note=f"{name} \u00b7 {label}: {count:,} ({count / counts.sum():.1%})",
            )
            for label, count in zip(labels, counts.tolist(), strict=True)
            if count
        ]
    chart = Chart(
        key="outcomes",
        title=f"Who finds the item, by {label_of_group(slicing.group)}",
        note=f"Each bar is all queries of a slice. A part in the colour of one side is found in "
        f"the first {shown.k} by that side alone: where it is the longer one, that side is better.",
        description=f"Shares of four outcomes in {len(rows)} slices.",
        spec=share_chart(
            bars, shown.colors, x_title="share of the queries", labels=[row[0] for row in rows]
        ),
        columns=("slice", "queries", *labels),
        rows=rows,
        legend=shown.colors,
        origins=shown.origins,
    )
    title = f"By {label_of_group(slicing.group)}"
    return [Section(key="slices", title=title, blocks=[chart])]


def pattern_sections(shown: Shown) -> list[Section]:
    """Say which slices are more frequent among wins than among losses."""
    first, second = shown.names
    found = patterns(shown.outcomes, shown.pairs.slicings)
    clear = [one for one in found if one.p_value <= LEVEL]
    lines = [
        f"{second} gains {'most' if one.lift > 1 else 'least'} where {label_of_group(one.group)} "
        f"is {one.name}: {one.won:,} won, {one.lost:,} lost, {one.lift:.2f} times as frequent "
        f"among wins as among losses ({one.low:.2f} to {one.high:.2f})."
        for one in clear[:4]
    ]
    if not lines:
        lines = [
            "No slice is shown to be more frequent among wins than among losses: the models "
            "differ for all kinds of queries alike, or on too few."
        ]
    blocks: list[Block] = [Words(lines=lines)]
    if found:
        rows: list[list[Cell | LinkedCell]] = []
        for one in found[:SHOWN_PATTERNS]:
            row: list[Cell | LinkedCell] = [
                f"{label_of_group(one.group)}: {one.name}", one.won, one.lost, f"{one.lift:.2f}",
                f"{one.low:.2f} to {one.high:.2f}", p_words(one.p_value),
            ]  # fmt: skip
            rows.append(row)
        blocks.append(
            Table(
                key="patterns",
                title="What wins have that losses lack",
                note=f"Lift: a slice's share of the queries that only {second} found over its "
                f"share of those that only {first} found, of {len(found)} slices; above 1 {second} "
                "has its wins there. p is corrected for all slices (Holm).",
                columns=[
                    *texts("slice"),
                    *counts("won", note=f"only {second}"),
                    *counts("lost", note=f"only {first}"),
                    *numbers("lift"),
                    *texts("95% interval", "adjusted p"),
                ],
                rows=rows,
                origins=shown.origins,
            )
        )
    return [Section(key="patterns-section", title="What they have in common", blocks=blocks)]


def lost_sections(context: Context, shown: Shown) -> list[Section]:
    """Draw where the items are lost that each combined list misses."""
    found = []
    for side, name in zip(shown.sides, shown.names, strict=True):
        steps = lost_where(context, side, shown.split, shown.k)
        total = sum(step.queries for step in steps)
        if not total:
            continue
        colors = {step.words: color_of(place) for place, step in enumerate(steps)}
        bars = [
            Bar(
                label="missed",
                series=step.words,
                share=step.queries / total,
                note=f"{step.words}: {step.queries:,} ({step.queries / total:.1%})",
            )
            for step in steps
            if step.queries
        ]
        worst = max(steps, key=lambda step: step.queries)
        chart = Chart(
            key=f"lost-{side.model}-{side.run.key}",
            title=f"Where {name} loses {total:,} items",
            note=f"Held-out items that are not in its first {shown.k}, by the step that loses "
            f"them. Most: {worst.words} ({worst.meaning}).",
            description="Shares of the steps on which items are lost.",
            spec=share_chart(bars, colors, x_title="share of the missed items", labels=["missed"]),
            columns=("step", "queries", "what it means"),
            rows=[(step.words, step.queries, step.meaning) for step in steps],
            legend=colors,
            origins=[side.run.origin],
        )
        found.append(chart)
    if not found:
        return []
    return [Section(key="lost", title="Where items are lost", blocks=found)]


def queries_section(context: Context, shown: Shown, query: Query) -> Section:
    """List the queries, the second side's greatest gains first."""
    outcome = query.choice("outcome", (ALL, *OUTCOMES), ALL)
    title = "All queries" if outcome == ALL else f"Queries: {shown.labels[outcome]}"
    first, second = shown.names
    table = Table(
        key="queries",
        title=title,
        note=f"Rank of the held-out item by {first} and {second} (of the first 100; empty where "
        "it is not there). A user leads to the history and both lists.",
        columns=columns_of(first, second),
        source=None if context.exported else "queries",
        rows=window_rows(context, shown, query) if context.exported else (),
        origins=shown.origins,
    )
    return Section(key="queries-section", title="Users", blocks=[table])


def window_of_queries(context: Context, query: Query, window: Window) -> Rows:
    """Return a window of the table of queries."""
    return rows_of(context, shown_of(context, query), query, window)


def suggest_users(context: Context, query: Query, text: str) -> Sequence[Option]:
    """Find users by a part of their id."""
    shown = shown_of(context, query)
    if shown.features is None:
        return []
    return [Option(value=one, label=one) for one in users_like(shown.features, text)]


def suggest_items(context: Context, query: Query, text: str) -> Sequence[Option]:
    """Find items by a part of their title, or by id."""
    shown = shown_of(context, query)
    if shown.features is None:
        return []
    known = catalogue_of(context, shown.features)
    return [Option(value=known.item_id(row), label=known.title(row)) for row in known.find(text)]


def exports(context: Context, query: Query) -> Sequence[Query]:
    """Export the page, and one user who won and one who lost."""
    try:
        shown = shown_of(context, query)
    except (NotFoundError, QueryError):
        return [query]
    names = example_users(shown)
    return [query, *(Query({**query.values, "user": (name,)}) for name in names)]


ENTRY = PageEntry(
    name="why",
    title="Why",
    build=build,
    rows={"queries": window_of_queries},
    suggest={"runs": suggest_runs, "users": suggest_users, "items": suggest_items},
    exports=exports,
    keeps=("run",),
)
