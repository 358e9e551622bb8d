"""Runs as one HTML file that opens anywhere: the documents that the dashboard serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.query import NotFoundError, Query, QueryError
from pipelines.dashboard.web.app import built
from pipelines.dashboard.web.shell import navigation
from pipelines.dashboard.workspaces.run import Run
from pipelines.dashboard.workspaces.stores import Stores
from pipelines.pages.document import Block, Section, Table, Window
from pipelines.pages.file import Document, html_of
from recsys.data.durable import write_durably

MAX_ROWS = 200
"""Rows in a file of a table that the server sends by windows."""


def find_runs(stores: Stores, wanted: Sequence[str]) -> list[Run]:
    """Find runs by their keys or folders; the newest complete one where none is named."""
    known = stores.runs()
    if not wanted:
        newest = [run for run in known if run.kind == "workspace" and run.status == "complete"][:1]
        if not newest:
            raise ValueError("there is no complete run to export; recsys demo makes one")
        return newest
    found = []
    for name in wanted:
        place = Path(name).resolve()
        same = [run for run in known if run.key == name]
        same += [run for run in known if run.path.resolve() == place]
        if not same:
            keys = ", ".join(f"{run.key} ({run.name})" for run in known[:10]) or "none"
            raise ValueError(f"--run {name} is no run's key or folder; the newest are: {keys}")
        found.append(same[0])
    return found


def list_queries(entry: PageEntry, context: Context, keys: Sequence[str]) -> Sequence[Query]:
    """List the queries of a page that a file about runs holds."""
    together = Query.of(run=keys[0], runs=tuple(keys) if len(keys) > 1 else None)
    if entry.exports is not None:
        return entry.exports(context, together)
    return [together, *(Query.of(run=key) for key in keys if len(keys) > 1)]


def build_pages(entry: PageEntry, context: Context, keys: Sequence[str]) -> list[Document]:
    """Make a page for the runs of a file; of a page that takes two, the first with each other."""
    try:
        return [document(entry, context, one) for one in list_queries(entry, context, keys)]
    except QueryError:
        if len(keys) <= 2:
            raise
    pairs = [(keys[0], other) for other in keys[1:]]
    return [one for pair in pairs for one in build_pages(entry, context, pair)]


def document(entry: PageEntry, context: Context, query: Query) -> Document:
    """Make a page as the file holds it."""
    page = built(context, entry, query)
    blocks = [with_rows(entry, context, query, one) for one in page.blocks]
    return Document(
        name=entry.name, parameters=dict(query.values), page=replace(page, blocks=blocks)
    )


def with_rows(entry: PageEntry, context: Context, query: Query, block: Block) -> Block:
    """Fill a table that comes by windows with its first rows."""
    if isinstance(block, Section):
        blocks = [with_rows(entry, context, query, one) for one in block.blocks]
        return replace(block, blocks=blocks)
    if not isinstance(block, Table) or block.source is None:
        return block
    rows = entry.rows[block.source](context, query, Window(length=MAX_ROWS))
    said = ""
    if rows.total > len(rows.rows):
        said = f" The first {len(rows.rows):,} of {rows.total:,} rows; recsys dashboard has all."
    return replace(block, rows=rows.rows, source=None, note=block.note + said)


def build_documents(
    context: Context, pages: Sequence[PageEntry], runs: Sequence[Run]
) -> tuple[list[Document], list[str]]:
    """Make all pages of runs; what cannot be shown of them is said in words instead."""
    documents: list[Document] = []
    left_out = []
    for entry in pages:
        try:
            documents += build_pages(entry, context, [run.key for run in runs])
        except (QueryError, NotFoundError) as error:
            left_out.append(f"{entry.title}: {error}")
    return documents, left_out


def write(
    context: Context, pages: Sequence[PageEntry], runs: Sequence[Run], path: Path
) -> Sequence[str]:
    """Write runs into one file; returns what it does not hold, in words."""
    documents, left_out = build_documents(context, pages, runs)
    if not documents:
        raise ValueError(f"nothing of these runs can be shown: {'; '.join(left_out)}")
    title = f"{', '.join(run.name for run in runs)} \u00b7 Recsys dashboard"
    text = html_of(documents, navigation(pages), title)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, text)
    return left_out
