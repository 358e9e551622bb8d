"""How commands print their results: lines, tables, JSON."""

from __future__ import annotations

import webbrowser
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from pipelines.engine.console import log, out

if TYPE_CHECKING:
    from pipelines.engine.runner import StageOutcome
    from pipelines.pages.document import Table as Block

Cell = str | Text | float | None


def print_lines(*lines: str, note: bool = False, style: str = "") -> None:
    """Print lines as they are.

    Args:
        note: Print to stderr, where progress goes.
    """
    for line in lines:
        console = log if note else out
        console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def print_progress(line: str) -> None:
    """Print a line of progress to stderr."""
    print_lines(line, note=True, style="dim")


def print_json(document: Any) -> None:
    """Print a document; NaN becomes null."""
    from pipelines.pages.encoding import encoded

    out.print_json(encoded(document).decode())


def make_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    title: str = "",
    fixed: Sequence[str] = (),
) -> Table:
    """Build a table.

    Args:
        columns: Headings; one that begins with ``>`` is of numbers, which align right.
        fixed: Columns that are never wrapped, besides those of numbers whose heading is one word.
    """
    table = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left")
    for column in columns:
        name, is_number = column.removeprefix(">"), column.startswith(">")
        whole = name in fixed or (is_number and " " not in name)
        table.add_column(name, justify="right" if is_number else "left", no_wrap=whole)
    for row in rows:
        cells = ("" if cell is None else cell for cell in row)
        table.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in cells))
    return table


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Cell]], *, title: str = "", fixed: Any = ()
) -> None:
    """Print a table; see ``make_table``."""
    out.print(make_table(columns, rows, title=title, fixed=fixed))


def print_block(block: Block) -> None:
    """Print a table of a page."""
    from pipelines.pages.charts import written

    rows = [
        [written(cell, one.format) for cell, one in zip(row, block.columns, strict=True)]
        for row in block.rows
    ]
    labels = [f">{one.label}" if one.numeric else one.label for one in block.columns]
    print_table(labels, rows, title=block.title, fixed=labels[:1])


def open_page(path: Path) -> None:
    """Open a file in the browser."""
    webbrowser.open(path.absolute().as_uri())


STAGE_COLUMNS = f"{'stage':<18} {'rows read':>14} {'rows written':>15} {'time':>11}  peak memory"
"""Heading of the lines of stages."""


def print_stage(outcome: StageOutcome) -> None:
    """Print a stage's line when it ends."""
    print_lines(outcome.log_line(), note=True, style="dim" if outcome.skipped else "")
