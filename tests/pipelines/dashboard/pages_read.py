"""What a test reads of a page: its words, its tables, its charts."""

from collections.abc import Iterator

from pipelines.pages.document import Block, Chart, Page, Section, Table, Words


def blocks(page: Page) -> Iterator[Block]:
    """Every block, those of sections too."""
    waiting = list(page.blocks)
    while waiting:
        block = waiting.pop(0)
        yield block
        if isinstance(block, Section):
            waiting = [*block.blocks, *waiting]


def words(page: Page) -> str:
    """All paragraphs."""
    return "\n".join(
        line for block in blocks(page) if isinstance(block, Words) for line in block.lines
    )


def lines_of(page: Page, key: str) -> str:
    """Paragraphs of a section; empty where it is not there."""
    for block in blocks(page):
        if isinstance(block, Section) and block.key == key:
            return "\n".join(
                line for part in block.blocks if isinstance(part, Words) for line in part.lines
            )
    return ""


def table(page: Page, key: str) -> Table:
    """A table by its key."""
    return next(block for block in blocks(page) if isinstance(block, Table) and block.key == key)


def charts(page: Page) -> dict[str, Chart]:
    """All charts by key."""
    return {block.key: block for block in blocks(page) if isinstance(block, Chart)}
