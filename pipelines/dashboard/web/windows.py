"""Windows of long tables, and whole tables as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from pipelines.dashboard.query import NotFoundError, Query
from pipelines.pages.document import Block, Cell, LinkedCell, Page, Rows, Section, Table, Window

MAX_LENGTH = 1_000
CSV_LENGTH = 20_000
"""Rows read at once for a whole table."""
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings of texts that a spreadsheet takes for formulas."""


def read_window(query: Query) -> Window:
    """Read a window; its parameters begin with ``w.``, so that no parameter of a page is meant."""
    order = query.text("w.order")
    return Window(
        start=query.number("w.start", 0, least=0, most=10**12),
        length=query.number("w.length", 25, least=1, most=MAX_LENGTH),
        order_by=query.number("w.order", 0, least=0, most=1_000) if order else None,
        descending=query.choice("w.descending", ("0", "1"), "0") == "1",
        search=query.text("w.search")[:200],
    )


def tables_in(blocks: Sequence[Block]) -> Iterator[Table]:
    """Find the tables among blocks, at any depth."""
    for block in blocks:
        if isinstance(block, Table):
            yield block
        elif isinstance(block, Section):
            yield from tables_in(block.blocks)


def find_table(page: Page, source: str) -> Table:
    """Find a page's table by its source."""
    for table in tables_in(page.blocks):
        if table.source == source:
            return table
    raise NotFoundError(f"this page has no table {source!r} now")


def csv_lines(table: Table, find: Callable[[Window], Rows], window: Window) -> Iterator[str]:
    """Write a table as CSV, some rows at a time."""
    yield _written([[column.label for column in table.columns]])
    start, found = 0, 1
    while start < found:
        part = find(replace(window, start=start, length=CSV_LENGTH))
        yield _written([[_text(cell) for cell in row] for row in part.rows])
        start += len(part.rows)
        found = part.found if part.rows else 0


def _text(cell: Cell | LinkedCell) -> Cell:
    value = cell.text if isinstance(cell, LinkedCell) else cell
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def _written(rows: Sequence[Sequence[Cell]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
