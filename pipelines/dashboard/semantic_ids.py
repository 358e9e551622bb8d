"""The page of a run's semantic IDs: the page of ``recsys ids report`` in any published version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.data.sides import one_run, run_control, suggest_runs
from pipelines.dashboard.data.windows import window_rows
from pipelines.dashboard.query import NotFoundError, Query, QueryError
from pipelines.dashboard.semantic_id_versions import IdVersions, find_versions, has_ids
from pipelines.pages.document import (
    Control,
    Option,
    Page,
    Rows,
    Section,
    Window,
    Words,
    select,
    with_origins,
)
from pipelines.pages.semantic_id_tree import PAGE, IdsView, member_row
from pipelines.pages.semantic_ids import semantic_ids_page
from pipelines.semantic_ids.items import Items
from pipelines.semantic_ids.measure import IdsMeasurement, measure, measure_drift
from pipelines.semantic_ids.store import SHORT
from pipelines.semantic_ids.table import IdTable, Prefix, most_popular

TITLE = "Semantic IDs"
HOW_TO = (
    "No run here has semantic IDs. They are made by the stage build_semantic_ids if items have "
    'text: set semantic_ids.method = "rq_kmeans" in the run\'s TOML file and run '
    "recsys run --until build_semantic_ids"
)
SUGGESTED = 20


def _find(context: Context, query: Query) -> tuple[IdVersions, IdTable, Items]:
    """Find the run, the version and the run's items."""
    source = find_versions(context, one_run(context, query, has_ids, HOW_TO))
    if not source.versions:
        problems = "; ".join(source.problems)
        raise NotFoundError(f"{source.run.name} has no semantic IDs. {problems or HOW_TO}")
    version = source.named(query.text("version") or source.versions[0])
    return source, source.table(version), source.items()


def _prefix(table: IdTable, items: Items, query: Query) -> Prefix:
    """Read the open prefix: the one named, else that of the named item."""
    row = items.row_of(query.text("item"))
    try:
        return table.read_prefix(query.text("prefix") or (table.text(row) if row else ""))
    except ValueError as error:
        raise QueryError(str(error)) from error


def build(context: Context, query: Query) -> Page:
    """Build the page."""
    try:
        source, table, items = _find(context, query)
    except NotFoundError as error:
        if query.text("run") or str(error) != HOW_TO:
            raise
        return Page(title=TITLE, lead=str(error), blocks=[])
    run = source.run
    if not len(table.rows):
        words = "No item of this run's catalogue has an ID in this version."
        return Page(title=TITLE, lead=words, blocks=[], controls=_controls(source, table))
    before = _compared(source, table)
    view = IdsView(
        measured=_measure(source, table, items, before),
        prefix=_prefix(table, items, query),
        item=items.row_of(query.text("item")),
        run=None if context.exported else run.key,
    )
    page = semantic_ids_page(view)
    blocks = [
        with_origins(one, [run.origin]) if isinstance(one, Section) else one for one in page.blocks
    ]
    if (wanted := query.text("item")) and view.item is None:
        missing = f"No item has the id {wanted!r} in this run."
        blocks.insert(1, Words(lines=[missing], tone="bad"))
    return replace(
        page,
        blocks=blocks,
        controls=_controls(source, table),
        notices=[*source.problems, *page.notices],
    )


def _measure(
    source: IdVersions, table: IdTable, items: Items, before: IdTable | None
) -> IdsMeasurement:
    """Measure a version and what changed since another one, once."""
    made = source.report if source.report.get("version") == table.version else {}
    cache, title = source.context.cache, source.run.name
    key = ("id measures", table.version, str(made.get("version")))
    report = source.once(cache, key, lambda: measure(table, items, made, title=title))
    drift = None
    if before is not None:
        names = ("id drift", before.version, table.version)
        drift = source.once(cache, names, lambda: measure_drift(before, table, items))
    return IdsMeasurement(report=report, drift=drift, table=table, items=items)


def _compared(source: IdVersions, table: IdTable) -> IdTable | None:
    """Read the version to compare with: the parent, if it was published."""
    parent = table.parent
    return source.table(parent) if parent and parent in source.published else None


def _controls(source: IdVersions, table: IdTable) -> Sequence[Control]:
    if source.context.exported:
        return []
    version = table.version[:SHORT]
    versions = {
        one[:SHORT]: f"{one[:SHORT]} (of this run)" if one == source.own else one[:SHORT]
        for one in source.versions
    }
    clears = ("version", "prefix", "item")
    found = run_control(source.context, source.run, clears=clears)
    if len(versions) > 1:
        found.append(select("version", "Version", version, versions, clears=("prefix",)))
    label = "Find an item (title or id)"
    search = Control(name="item", label=label, kind="search", suggest="items", clears=("prefix",))
    return [*found, search]


def suggest_items(context: Context, query: Query, text: str) -> Sequence[Option]:
    """Find items by a part of the title or by id: the id itself, then the most popular."""
    source, table, items = _find(context, query)
    if not (wanted := text.strip()):
        return []
    titles = source.once(context.tables, ("lowered titles",), items.titles.str.to_lowercase)
    inside = titles.str.contains(wanted.lower(), literal=True)
    inside |= items.item_ids.str.starts_with(wanted)
    rows = inside.arg_true().to_numpy().astype("int64")
    exact = items.row_of(wanted)
    found = [row for row in most_popular(items, rows[rows > 0], SUGGESTED) if row != exact]
    some = ([exact] if exact else []) + found
    return [
        Option(
            value=str(items.item_ids[row]),
            label=f"{items.title(row)} ({table.text(row) or 'no ID'})",
        )
        for row in some[:SUGGESTED]
    ]


def members(context: Context, query: Query, window: Window) -> Rows:
    """List the items of the open prefix, the most popular first."""
    source, table, items = _find(context, query)
    every = kept = np.sort(table.members(_prefix(table, items, query)))
    categories = pl.Series(["", *items.names]).gather(items.categories + 1)
    if window.search:
        words = pl.concat_str(
            items.item_ids, items.titles, categories, separator=" ", ignore_nulls=True
        )
        found = pl.select(words.gather(every)).to_series().str.to_lowercase()
        kept = every[found.str.contains(window.search.lower(), literal=True).to_numpy()]
    places = np.zeros(len(items.item_ids))
    places[table.rows] = np.arange(len(table.rows))
    columns = (items.item_ids, items.titles, places, categories, items.popularity)
    view = IdsView(
        measured=_measure(source, table, items, None),
        run=None if context.exported else source.run.key,
    )
    rows = window_rows(kept, columns, window, 4).tolist()
    return Rows(total=len(every), found=len(kept), rows=[member_row(view, row) for row in rows])


ENTRY = PageEntry(
    name=PAGE,
    title=TITLE,
    build=build,
    rows={"members": members},
    suggest={"runs": suggest_runs, "items": suggest_items},
    keeps=("run",),
)
