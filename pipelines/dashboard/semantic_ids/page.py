"""The page of a run's semantic IDs: codes, collisions, the tree, drift between versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import polars as pl

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.data.sides import one_run, run_control, suggest_runs
from pipelines.dashboard.query import NotFoundError, Query
from pipelines.dashboard.semantic_ids.blocks import (
    collision_section,
    drift_section,
    popularity_section,
    summary_tiles,
)
from pipelines.dashboard.semantic_ids.collisions import collisions_of
from pipelines.dashboard.semantic_ids.drift import compare
from pipelines.dashboard.semantic_ids.measures import Measured, measure
from pipelines.dashboard.semantic_ids.tree import most_popular
from pipelines.dashboard.semantic_ids.versions import (
    HOW_TO,
    IdTable,
    Source,
    has_ids,
    read_ids,
    read_items,
    source_of,
)
from pipelines.dashboard.semantic_ids.walk import (
    PAGE,
    Shown,
    item_section,
    member_rows,
    walk_section,
)
from pipelines.pages.document import (
    Block,
    Control,
    Option,
    Page,
    Rows,
    Window,
    Words,
)
from pipelines.pages.figure import with_origins
from pipelines.pages.semantic_ids.page import content_section, usage_section
from pipelines.pages.semantic_ids.summary import SHORT, answer, notices

TITLE = "Semantic IDs"
SUGGESTED = 20
COMPARED = 200_000
"""Items up to which a version is compared with the one before of itself."""


class Chosen(NamedTuple):
    """What a query is about."""

    source: Source
    shown: Shown


def chosen(context: Context, query: Query) -> Chosen:
    """Find the run and the version.

    Raises:
        NotFoundError: They are not there or cannot be read.
    """
    source = source_of(context, one_run(context, query, has_ids, HOW_TO))
    if not source.versions:
        problems = "; ".join(source.problems)
        raise NotFoundError(f"{source.run.name} has no semantic IDs. {problems or HOW_TO}")
    version = source.named(query.text("version") or source.versions[0])
    items = read_items(context, source)
    table = read_ids(context, source, version)
    return Chosen(source, Shown(context=context, source=source, table=table, items=items))


def build(context: Context, query: Query) -> Page:
    """Make the page."""
    if not query.text("run"):
        try:
            one_run(context, query, has_ids, HOW_TO)
        except NotFoundError as error:
            return Page(title=TITLE, lead=str(error), blocks=[])
    source, shown = chosen(context, query)
    table, items = shown.table, shown.items
    key = (source.path, table.version, source.report.get("version"))
    files = source.files
    if not len(table.rows):
        words = "No item of this run's catalogue has an ID in this version."
        return Page(title=TITLE, lead=words, blocks=[], controls=_controls(context, source, shown))
    cache = context.cache
    measured = cache.get(("id measures", *key), files, lambda: measure(table, items, source))
    collided = cache.get(("id collisions", *key), files, lambda: collisions_of(table, source))
    before = _previous(context, query, source, table)
    drift = None
    if before is not None:
        names = ("id drift", source.path, before.version, table.version)
        drift = cache.get(names, files, lambda: compare(before, table, items))
    wanted = query.text("item")
    row = items.row_of(wanted)
    prefix = table.prefix_of(query.text("prefix") or (table.text(row) if row else ""))
    report, has_content = measured.report, measured.has_content
    blocks: list[Block] = [summary_tiles(measured, drift)]
    if wanted:
        missing = Words(lines=[f"No item has the id {wanted!r} in this run."], tone="bad")
        blocks.append(missing if row is None else item_section(shown, row))
    blocks += [
        walk_section(shown, prefix),
        with_origins(usage_section(report, has_content=has_content), shown.origins),
        collision_section(shown, measured, collided),
        with_origins(content_section(report, has_content=has_content), shown.origins),
        popularity_section(shown, measured),
    ]
    if before is not None:
        blocks.append(drift_section(shown, measured.report, drift, before))
    return Page(
        title=TITLE,
        lead=answer(report)
        if has_content
        else f"{len(table.rows):,} items have an ID of {table.num_levels} codes.",
        blocks=blocks,
        controls=_controls(context, source, shown, before),
        notices=[*source.problems, *_notices(measured)],
    )


def _notices(measured: Measured) -> list[str]:
    report = measured.report
    if measured.is_known:
        return notices(report)
    missing = report.counts.num_without_id
    counts = replace(report.counts, num_without_id=0, num_without_content=0)
    found = notices(replace(report, counts=counts))
    return [f"Items without an ID in this version: {missing:,}.", *found] if missing else found


def _previous(context: Context, query: Query, source: Source, table: IdTable) -> IdTable | None:
    """Read the version to compare with: the named one, else the parent, else the one before.

    Two versions of a large catalogue take seconds to read, so they are compared where one is named.
    """
    named = query.text("previous")
    if named:
        found = source.named(named)
    elif len(table.rows) > COMPARED:
        found = ""
    else:
        others = [version for version in source.published if version != table.version]
        found = table.parent if table.parent in others else ""
        if not found and table.version in source.published:
            later = source.published[source.published.index(table.version) + 1 :]
            found = later[0] if later else ""
    return read_ids(context, source, found) if found and found != table.version else None


def _controls(
    context: Context, source: Source, shown: Shown, before: IdTable | None = None
) -> Sequence[Control]:
    if context.exported:
        return []
    versions = [
        Option(
            value=version[:SHORT],
            label=f"{version[:SHORT]} (of this run)" if version == source.own else version[:SHORT],
        )
        for version in source.versions
    ]
    version = shown.table.version[:SHORT]
    found = run_control(context, source.run, clears=("version", "previous", "prefix", "item"))
    if len(versions) > 1:
        found += [
            Control(
                name="version",
                label="Version",
                kind="select",
                value=version,
                options=versions,
                clears=("prefix", "previous"),
            ),
            Control(
                name="previous",
                label="Compared with",
                kind="select",
                value="" if before is None else before.version[:SHORT],
                options=[
                    *([Option(value="", label="choose a version")] if before is None else []),
                    *(one for one in versions if one.value != version),
                ],
            ),
        ]
    search = Control(
        name="item",
        label="Find an item (title or id)",
        kind="search",
        suggest="items",
        clears=("prefix",),
    )
    return [*found, search]


def suggest_items(context: Context, query: Query, text: str) -> Sequence[Option]:
    """Find items by a part of the title or by id: the id itself, then the most popular."""
    shown = chosen(context, query).shown
    items, wanted = shown.items, text.strip()
    if not wanted:
        return []
    lowered = context.tables.get(
        ("lowered titles", shown.source.path), shown.source.files, items.titles.str.to_lowercase
    )
    inside = lowered.str.contains(wanted.lower(), literal=True) | items.item_ids.str.starts_with(
        wanted
    )
    rows = pl.Series(inside).arg_true().to_numpy().astype("int64")
    exact = items.row_of(wanted)
    found = [row for row in most_popular(items, rows[rows > 0], SUGGESTED) if row != exact]
    some = ([exact] if exact else []) + found
    return [
        Option(
            value=str(items.item_ids[row]),
            label=f"{items.title(row)} ({shown.table.text(row) or 'no ID'})",
        )
        for row in some[:SUGGESTED]
    ]


def members(context: Context, query: Query, window: Window) -> Rows:
    """List the items of the open prefix."""
    shown = chosen(context, query).shown
    text = query.text("prefix")
    if not text and (row := shown.items.row_of(query.text("item"))):
        text = shown.table.text(row)
    return member_rows(shown, shown.table.prefix_of(text), window)


ENTRY = PageEntry(
    name=PAGE,
    title=TITLE,
    build=build,
    rows={"members": members},
    suggest={"runs": suggest_runs, "items": suggest_items},
    keeps=("run",),
)
