"""The tree of a version's prefixes, with the items of the open one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipelines.pages.charts import counts, percent, texts
from pipelines.pages.document import (
    Block,
    Cell,
    Link,
    LinkedCell,
    Node,
    Section,
    Table,
    Tile,
    Tiles,
    Tree,
    Words,
)
from pipelines.semantic_ids.measure import IdsMeasurement
from pipelines.semantic_ids.store import SHORT
from pipelines.semantic_ids.table import (
    Group,
    Prefix,
    list_children,
    most_popular,
    path_to,
    prefix_text,
)

PAGE = "semantic-ids"
SHOWN = 256
"""Nodes below the open one."""
FILE_NODES, FILE_CHILDREN, FILE_ITEMS = 16, 6, 50
"""Nodes, nodes below each, and items of the open prefix in a file."""
NO_ID = (
    "It has no semantic ID in this version: it has no content, or came later. recsys ids append "
    "gives IDs to items with content."
)
MEMBER_COLUMNS = [*texts("item", "title", "semantic ID", "main category"), *counts("popularity")]


@dataclass(frozen=True, kw_only=True)
class IdsView:
    """A measured version, and the part of its tree that is open."""

    measured: IdsMeasurement
    prefix: Prefix = ()
    item: int | None = None
    """Item row that was searched."""
    run: str | None = None
    """Key of the run that links of the dashboard lead to; None in a file, which has no links."""

    def link(self, prefix: str) -> Link | None:
        """Open a prefix."""
        if self.run is None:
            return None
        version = self.measured.table.version[:SHORT]
        parameters = {"run": self.run, "version": version, "prefix": prefix}
        return Link(label=prefix or "all items", page=PAGE, parameters=parameters)

    def item_link(self, row: int) -> Link:
        """Open an item's own page."""
        item_id = str(self.measured.items.item_ids[row])
        parameters = {"run": self.run or "", "item": item_id}
        return Link(label=item_id, page="items", parameters=parameters)

    def children(self, prefix: Prefix) -> list[Group]:
        return list_children(self.measured.table, self.measured.items, prefix)


def item_section(view: IdsView, row: int) -> Section:
    """Show an item's place in the tree."""
    items, table = view.measured.items, view.measured.table
    text, title = table.text(row), items.title(row)
    if not text:
        return Section(key="item", title=title, blocks=[Words(lines=[NO_ID])])
    found = [
        Tile(label="semantic ID", value=text),
        Tile(label="main category", value=items.category(row) or "none"),
        Tile(label="popularity", value=f"{items.popularity[row]:,.0f}", note=items.counted),
    ]
    whole = table.read_prefix(text)
    for length in range(1, len(whole)):
        prefix = prefix_text(whole[:length])
        others = f"{len(table.members(whole[:length])) - 1:,}"
        found.append(Tile(label=f"others with {prefix}", value=others, link=view.link(prefix)))
    blocks: list[Block] = [Tiles(tiles=found)]
    if view.run is not None:
        blocks.append(Words(lines=["Its page:"], links=[view.item_link(row)]))
    return Section(key="item", title=title, blocks=blocks)


def tree_section(view: IdsView) -> Section:
    """Show the reader's place in the tree, and the prefixes and items below."""
    blocks: list[Block] = [_tree(view)]
    if view.prefix:
        blocks.append(_members(view))
    return Section(
        key="tree-of-codes",
        title="Tree of prefixes",
        note="Items with the same first codes are alike. Each line: items, the commonest main "
        "category and its share (of the items that have one), the most popular titles.",
        blocks=blocks,
    )


def _tree(view: IdsView) -> Tree:
    in_file, table, items = view.run is None, view.measured.table, view.measured.items

    def node(group: Group, children: Sequence[Node] = ()) -> Node:
        parts = ["1 item" if group.num_items == 1 else f"{group.num_items:,} items"]
        if group.category and group.purity is not None and group.num_items > 1:
            parts.append(f"{percent(group.purity)} {group.category}")
        note = f"{', '.join(parts)}: {'; '.join(group.titles)}"
        return Node(label=group.text, note=note, link=view.link(group.text), children=children)

    below = view.children(view.prefix)
    some = below[: FILE_NODES if in_file else SHOWN]
    nodes = [node(one) for one in some]
    if in_file:
        lower = [view.children(one.prefix)[:FILE_CHILDREN] for one in some]
        nodes = [node(one, list(map(node, own))) for one, own in zip(some, lower, strict=True)]
    for group in reversed(path_to(table, items, view.prefix)):
        nodes = [node(group, nodes)]
    note = f"{len(table.rows):,} items with an ID"
    left = len(below) - len(some)
    return Tree(
        key="tree",
        title=f"Prefixes of {prefix_text(view.prefix) or 'the whole catalogue'}",
        note="The largest first; open one to see what follows it."
        + (f" {left:,} smaller ones are left out." if left else ""),
        nodes=[Node(label="all", note=note, link=view.link(""), children=nodes)],
    )


def _members(view: IdsView) -> Table:
    """Tabulate the items of the open prefix; the dashboard reads a window at a time."""
    rows, in_file = np.sort(view.measured.table.members(view.prefix)), view.run is None
    count, items = len(rows), view.measured.items
    left = f" The {FILE_ITEMS} most popular." if in_file and count > FILE_ITEMS else ""
    listed = most_popular(items, rows, FILE_ITEMS) if in_file else []
    return Table(
        key="members",
        title="1 item" if count == 1 else f"{count:,} items of {prefix_text(view.prefix)}",
        note=f"Popularity: {items.counted}.{left}",
        columns=MEMBER_COLUMNS,
        rows=[member_row(view, row) for row in listed],
        source=None if in_file else "members",
    )


def member_row(view: IdsView, row: int) -> tuple[Cell | LinkedCell, ...]:
    """List an item's cells of `MEMBER_COLUMNS`."""
    items, link = view.measured.items, view.item_link(row)
    return (
        link.label if view.run is None else LinkedCell(text=link.label, link=link),
        *(items.title(row), view.measured.table.text(row), items.category(row)),
        float(items.popularity[row]),
    )
