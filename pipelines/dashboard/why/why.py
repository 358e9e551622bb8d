"""Page ``why``: who won and lost between two models, what they share, and one user looked at."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.data.sides import (
    controls,
    group_control,
    k_control,
    suggest_runs,
)
from pipelines.dashboard.data.slices import Slicing, group_label
from pipelines.dashboard.query import NotFoundError, Query, QueryError
from pipelines.dashboard.why.outcomes import LISTED, OUTCOMES, Contest, lost_where, read_contest
from pipelines.dashboard.why.users import (
    ALL,
    example_users,
    queries_table,
    user_section,
    window_of_queries,
)
from pipelines.pages.charts import color_of, counts, figure, share_chart, shares, texts
from pipelines.pages.document import (
    Block,
    Chart,
    Link,
    Page,
    Section,
    Tile,
    Tiles,
    Words,
    select,
)


def build(context: Context, query: Query) -> Page:
    """Build the page."""
    shown = read_contest(context, query)
    first, second = shown.names
    own = controls(context, shown.sides, at_most=2)
    if not len(shown.pairs.known):
        lead = "No query was answered by both, so neither won or lost. Choose runs of one data set."
        return Page(title="Why", lead=lead, blocks=[], controls=own)
    totals = np.bincount(shown.outcomes, minlength=len(OUTCOMES)).tolist()
    groups = shown.pairs.slicings.groups
    group = query.choice("group", groups, groups[0]) if groups else ""
    outcome = query.choice("outcome", (ALL, *OUTCOMES), ALL)
    blocks: list[Block] = [tiles(shown, totals)]
    notices = []
    if user_id := query.text("user"):
        try:
            blocks.append(user_section(context, shown, user_id))
        except NotFoundError as error:
            notices.append(str(error))
    slicing = shown.pairs.slicings.get(group) if group else None
    title = "All queries" if outcome == ALL else f"Queries: {shown.labels[outcome]}"
    blocks += [
        *([slices_section(shown, slicing)] if slicing else []),
        *lost_sections(context, shown),
    ]
    if shown.features is not None:
        users: list[Block] = [queries_table(shown, title)]
        if item := query.text("item"):
            back = Link(label="All users", page="why", parameters=shown.parameters)
            users.insert(0, Words(lines=[f"Only users who wanted the item {item}."], links=[back]))
        blocks.append(Section(key="queries-section", title="Users", blocks=users))
    return Page(
        title=f"Why: {first} or {second}",
        lead=f"Of {len(shown.pairs.known):,} held-out items, {totals[1]:,} are in the first "
        f"{shown.k} of {first} alone, {totals[2]:,} in those of {second} alone.",
        blocks=blocks,
        controls=[
            *own,
            k_control(shown.k, LISTED),
            *group_control(group, groups),
            select("outcome", "Queries", outcome, {ALL: "all", **shown.labels}),
        ],
        notices=[*notices, *shown.pairs.slicings.problems],
    )


def tiles(shown: Contest, totals: Sequence[int]) -> Tiles:
    """Count the outcomes."""
    found = []
    for (outcome, label), count in zip(shown.labels.items(), totals, strict=True):
        parameters = {**shown.parameters, "outcome": outcome}
        link = Link(label="show them", page="why", parameters=parameters)
        note = f"{count / max(1, sum(totals)):.1%} of the queries, first {shown.k}"
        title = label[0].upper() + label[1:]
        found.append(Tile(label=title, value=f"{count:,}", note=note, link=link))
    return Tiles(tiles=found)


def shares_chart(
    key: str, title: str, note: str, parts: dict[str, dict[str, int]], shown: Contest
) -> Chart:
    """Draw the parts of each row as one bar, in the colours of ``shown``."""
    names = list(dict.fromkeys(part for row in parts.values() for part in row))
    return figure(
        share_chart,
        key,
        title,
        note,
        [*texts("row", "part"), *counts("queries"), *shares("share")],
        [
            (label, part, count, count / sum(row.values()))
            for label, row in parts.items()
            for part, count in row.items()
        ],
        "label series - share",
        colors={part: shown.colors.get(part, color_of(n)) for n, part in enumerate(names)},
        shown=lambda row: bool(row[2]),
        x_title="share of the queries",
        origins=shown.origins,
    )


def slices_section(shown: Contest, slicing: Slicing) -> Section:
    """Draw the outcomes of each slice of the chosen slicing."""
    labels = list(shown.labels.values())
    parts = {}
    for code, name in enumerate(slicing.names):
        inside = shown.outcomes[slicing.queries[slicing.codes == code]]
        found = np.bincount(inside, minlength=len(OUTCOMES)).tolist()
        if sum(found):
            parts[name] = dict(zip(labels, found, strict=True))
    title = group_label(slicing.group)
    chart = shares_chart(
        "outcomes",
        f"Who finds the item, by {title}",
        f"Each bar is all queries of a slice. A part in the colour of one side is found in the "
        f"first {shown.k} by that side alone: if it is the longer one, that side is better.",
        parts,
        shown,
    )
    return Section(key="slices", title=f"By {title}", blocks=[chart])


def lost_sections(context: Context, shown: Contest) -> list[Section]:
    """Draw on which step the items are lost that each combined list misses."""
    found = []
    for side, name in zip(shown.sides, shown.names, strict=True):
        steps = lost_where(context, side, shown.k)
        total = sum(step.queries for step in steps)
        if not total:
            continue
        worst = max(steps, key=lambda step: step.queries)
        meanings = " ".join(f"{step.words}: {step.meaning}." for step in steps)
        found.append(
            shares_chart(
                f"lost-{side.model}-{side.run.key}",
                f"Where {name} loses {total:,} items",
                f"Held-out items that are not in its first {shown.k}, by the step that loses them. "
                f"Most: {worst.words}. {meanings}",
                {"missed": {step.words: step.queries for step in steps}},
                shown,
            )
        )
    return [Section(key="lost", title="Where items are lost", blocks=found)] if found else []


def exports(context: Context, query: Query) -> Sequence[Query]:
    """Export the page, and one user who won and one who lost."""
    try:
        names = example_users(read_contest(context, query))
    except (NotFoundError, QueryError):
        return [query]
    return [query, *(Query({**query.values, "user": (name,)}) for name in names)]


ENTRY = PageEntry(
    name="why",
    title="Why",
    build=build,
    rows={"queries": window_of_queries},
    suggest={"runs": suggest_runs},
    exports=exports,
    keeps=("run",),
)
