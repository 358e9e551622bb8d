"""Find blocks of a page by their kind and key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pipelines.dashboard.context import Context
from pipelines.dashboard.workspaces.stores import Places, Stores
from pipelines.pages.document import (
    Block,
    Cell,
    Chart,
    LinkedCell,
    Page,
    Section,
    Table,
    Tile,
    Tiles,
    Words,
)

B = TypeVar("B")


def blocks_of(blocks: Sequence[Block], kind: type[B]) -> Iterator[B]:
    """List the blocks of a kind, those of sections included."""
    for block in blocks:
        if isinstance(block, kind):
            yield block
        if isinstance(block, Section):
            yield from blocks_of(block.blocks, kind)


def block_of(page: Page, kind: type[B], key: str = "") -> B:
    """Return the first block of a kind, and of a key where one is given."""
    found = [
        block
        for block in blocks_of(page.blocks, kind)
        if not key or getattr(block, "key", None) == key
    ]
    assert found, f"no {kind.__name__} {key!r} on the page {page.title!r}"
    return found[0]


def texts(row: Sequence[Cell | LinkedCell]) -> list[Cell]:
    """Write a row as it is shown."""
    return [cell.text if isinstance(cell, LinkedCell) else cell for cell in row]


def words(page: Page) -> str:
    """Return all paragraphs."""
    return "\n".join(line for block in blocks_of(page.blocks, Words) for line in block.lines)


def lines_of(page: Page, key: str) -> str:
    """Return the paragraphs of a section; empty if it is not there."""
    sections = [one for one in blocks_of(page.blocks, Section) if one.key == key]
    return "\n".join(
        line
        for one in sections
        for block in one.blocks
        if isinstance(block, Words)
        for line in block.lines
    )


def table(page: Page, key: str) -> Table:
    """Return a table by its key."""
    return block_of(page, Table, key)


def charts(page: Page) -> dict[str, Chart]:
    """Return all charts by key."""
    return {block.key: block for block in blocks_of(page.blocks, Chart)}


def sections(page: Page) -> dict[str, Section]:
    """Return all sections by key."""
    return {block.key: block for block in blocks_of(page.blocks, Section)}


def tiles(page: Page) -> dict[str, Tile]:
    """Return the tiles of a page's first group by label."""
    return {tile.label: tile for tile in block_of(page, Tiles).tiles}


def dashboard(*roots: Path, **more: Any) -> Context:
    """Make a dashboard of folders."""
    return Context(stores=Stores(Places(roots=roots)), **more)
