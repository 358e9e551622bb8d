"""A run as one HTML file that opens anywhere: the documents that the dashboard serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.query import NotFoundError, Query, QueryError
from pipelines.dashboard.web.app import built, navigation
from pipelines.dashboard.workspaces.run import Run
from pipelines.dashboard.workspaces.stores import Stores
from pipelines.pages.document import Block, Section, Table, Window
from pipelines.pages.file import Document, html_of
from recsys.data.durable import write_durably

MAX_ROWS = 200
"""Rows in a file of a table that the server sends by windows."""


def find_run(stores: Stores, wanted: str | None) -> Run:
    """Find a run by its key or folder; the newest complete one if none is named."""
    known = stores.runs()
    if wanted is None:
        found = [run for run in known if run.kind == "workspace" and run.status == "complete"]
        if not found:
            raise ValueError("there is no complete run to export; recsys demo makes one")
        return found[0]
    place = Path(wanted).resolve()
    found = [run for run in known if run.key == wanted or run.path.resolve() == place]
    if not found:
        keys = ", ".join(f"{run.key} ({run.name})" for run in known[:10]) or "none"
        raise ValueError(f"--run {wanted} is no run's key or folder; the newest are: {keys}")
    return found[0]


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
    said = f" The first {len(rows.rows):,} of {rows.total:,} rows; recsys dashboard has all."
    note = block.note + (said if rows.total > len(rows.rows) else "")
    return replace(block, rows=rows.rows, source=None, note=note)


def build_documents(
    context: Context, pages: Sequence[PageEntry], run: Run
) -> tuple[list[Document], list[str]]:
    """Make all pages of a run; what cannot be shown of it is said in words instead."""
    documents: list[Document] = []
    left_out = []
    query = Query.of(run=run.key)
    for entry in pages:
        try:
            queries = [query] if entry.exports is None else entry.exports(context, query)
            documents += [document(entry, context, one) for one in queries]
        except (QueryError, NotFoundError) as error:
            left_out.append(f"{entry.title}: {error}")
    return documents, left_out


def write(context: Context, pages: Sequence[PageEntry], run: Run, path: Path) -> Sequence[str]:
    """Write a run into one file; returns what it does not hold, in words."""
    documents, left_out = build_documents(context, pages, run)
    if not documents:
        raise ValueError(f"nothing of this run can be shown: {'; '.join(left_out)}")
    text = html_of(documents, navigation(pages), f"{run.name} \u00b7 Recsys dashboard")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, text)
    return left_out
