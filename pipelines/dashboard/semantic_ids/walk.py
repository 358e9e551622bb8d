"""The part of the page that walks the tree of prefixes and opens an item's place in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.dashboard.context import Context
from pipelines.dashboard.semantic_ids.catalogue import Items
from pipelines.dashboard.semantic_ids.tree import Group, children_of, most_popular, path_to
from pipelines.dashboard.semantic_ids.versions import IdTable, Prefix, Source
from pipelines.pages.columns import counts, shares, texts
from pipelines.pages.document import (
    Block,
    Cell,
    Link,
    LinkedCell,
    Node,
    Origin,
    Rows,
    Section,
    Table,
    Tile,
    Tiles,
    Tree,
    Window,
    Words,
)
from pipelines.pages.figure import percent

PAGE = "semantic-ids"
SHOWN = 24
"""Nodes below the open one; the table has all."""
EXPORTED_TOP, EXPORTED_BELOW = 16, 6
EXPORTED_ITEMS = 50
MEMBER_COLUMNS = [*texts("item", "title", "semantic ID", "main category"), *counts("popularity")]


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One version of a run's IDs on the page."""

    context: Context
    source: Source
    table: IdTable
    items: Items

    @property
    def origins(self) -> list[Origin]:
        return [self.source.run.origin]

    def link(self, prefix: str) -> Link | None:
        """Open a prefix; a file has no other than its own."""
        if self.context.exported:
            return None
        parameters = {"run": self.source.run.key, "version": self.table.version[:12]}
        label = prefix or "all items"
        return Link(label=label, page=PAGE, parameters=parameters | {"prefix": prefix})

    def cell(self, prefix: str) -> Cell | LinkedCell:
        """Name a prefix in a table."""
        link = self.link(prefix)
        return prefix if link is None else LinkedCell(text=prefix, link=link)

    def item_link(self, row: int) -> Link:
        """Open an item's own page."""
        item_id = str(self.items.item_ids[row])
        parameters = {"run": self.source.run.key, "item": item_id}
        return Link(label=item_id, page="items", parameters=parameters)

    def children(self, prefix: Prefix) -> list[Group]:
        """Describe what follows a prefix, once."""
        key = ("prefix", self.source.path, self.table.version, prefix)
        return self.context.cache.get(
            key, self.source.files, lambda: children_of(self.table, self.items, prefix)
        )


def words_of(group: Group) -> str:
    """Describe a node in a line."""
    count = "1 item" if group.num_items == 1 else f"{group.num_items:,} items"
    parts = [count]
    if group.category and group.purity is not None and group.num_items > 1:
        parts.append(f"{percent(group.purity)} {group.category}")
    titles = "; ".join(group.titles)
    return f"{', '.join(parts)}: {titles}"


def walk_section(shown: Shown, prefix: Prefix) -> Section:
    """Show where the reader is in the tree, and what lies below."""
    table = shown.table
    below = shown.children(prefix)
    low, high = table.bounds(prefix)
    blocks: list[Block] = [_tree(shown, prefix, below)]
    if len(below) > SHOWN and not shown.context.exported:
        blocks.append(_children_table(shown, prefix, below))
    if prefix:
        blocks.append(_members(shown, prefix, high - low))
    return Section(
        key="walk",
        title="Walk the tree",
        note="Items with the same first codes are alike. Each line: items, the commonest main "
        "category and its share (of the items that have one), the most popular titles.",
        blocks=blocks,
    )


def _tree(shown: Shown, prefix: Prefix, below: Sequence[Group]) -> Tree:
    nodes = [_node(shown, group) for group in below[:SHOWN]]
    if shown.context.exported:
        nodes = [
            _node(shown, group, shown.children(group.prefix)[:EXPORTED_BELOW])
            for group in below[:EXPORTED_TOP]
        ]
    for group in reversed(path_to(shown.table, shown.items, prefix)):
        nodes = [_node(shown, group, nodes=nodes)]
    total = len(shown.table.rows)
    note = f"{total:,} items with an ID"
    root = Node(label="all", note=note, link=shown.link(""), children=nodes)
    left = len(below) - len(below[: EXPORTED_TOP if shown.context.exported else SHOWN])
    more = f" The {left:,} smaller ones are in the table below." if left else ""
    if shown.context.exported:
        more = f" {left:,} smaller ones are left out of this file." if left else ""
    where = "-".join(map(str, prefix)) or "the whole catalogue"
    return Tree(
        key="tree",
        title=f"Prefixes of {where}",
        note=f"The largest first; open one to see what follows it.{more}",
        nodes=[root],
        origins=shown.origins,
    )


def _node(
    shown: Shown, group: Group, below: Sequence[Group] = (), nodes: Sequence[Node] = ()
) -> Node:
    return Node(
        label=group.text,
        note=words_of(group),
        link=shown.link(group.text),
        children=[*nodes, *(_node(shown, one) for one in below)],
    )


def _children_table(shown: Shown, prefix: Prefix, below: Sequence[Group]) -> Table:
    return Table(
        key="children",
        title=f"All {len(below):,} prefixes of the next level",
        note="Sort by purity to find prefixes that mean nothing in particular.",
        columns=[
            *texts("prefix"),
            *counts("items"),
            *shares("share", note="of the items of the open prefix"),
            *texts("main category"),
            *shares("purity", note="of the items with a category, those with this one"),
            *texts("most popular"),
        ],
        rows=[
            (
                shown.cell(group.text),
                group.num_items,
                group.share,
                group.category,
                group.purity,
                "; ".join(group.titles),
            )
            for group in below
        ],
        page_length=10,
        origins=shown.origins,
    )


def _members(shown: Shown, prefix: Prefix, count: int) -> Table:
    text = "-".join(map(str, prefix))
    exported = shown.context.exported
    rows: Sequence[Sequence[Cell | LinkedCell]] = ()
    if exported:
        rows = member_rows(shown, prefix, Window(length=EXPORTED_ITEMS)).rows
    left = f" The {EXPORTED_ITEMS} most popular." if exported and count > EXPORTED_ITEMS else ""
    return Table(
        key="members",
        title="1 item" if count == 1 else f"{count:,} items of {text}",
        note=f"Popularity: {shown.items.counted}.{left}",
        columns=MEMBER_COLUMNS,
        rows=rows,
        source=None if exported else "members",
        origins=shown.origins,
    )


def member_rows(shown: Shown, prefix: Prefix, window: Window) -> Rows:
    """List the items of a prefix, the most popular first."""
    table, items = shown.table, shown.items
    low, high = table.bounds(prefix)
    rows = table.rows[low:high]
    total = len(rows)
    if window.search:
        kept = _matches(items, rows.tolist(), window.search)
        rows = rows[kept]
    if window.order_by in (None, 4) and (window.order_by is None or window.descending):
        some = most_popular(items, rows, window.start + window.length)
    else:
        values = [_member(shown, row) for row in rows.tolist()]
        place = window.order_by or 0
        order = sorted(
            range(len(values)),
            key=lambda number: _sortable(values[number][place]),
            reverse=window.descending,
        )
        some = rows[order].tolist()
    chosen = some[window.start : window.start + window.length]
    return Rows(total=total, found=len(rows), rows=[_member(shown, row) for row in chosen])


def _matches(items: Items, rows: list[int], search: str) -> list[bool]:
    wanted = search.casefold()
    return [
        wanted in f"{items.item_ids[row]} {items.titles[row]} {items.category(row)}".casefold()
        for row in rows
    ]


def _sortable(cell: Cell | LinkedCell) -> tuple[int, float, str]:
    if isinstance(cell, (int, float)):
        return (0, float(cell), "")
    return (1, 0.0, str(cell.text if isinstance(cell, LinkedCell) else cell).casefold())


def _member(shown: Shown, row: int) -> tuple[Cell | LinkedCell, ...]:
    items = shown.items
    link = shown.item_link(row)
    return (
        link.label if shown.context.exported else LinkedCell(text=link.label, link=link),
        items.title(row),
        shown.table.text(row),
        items.category(row),
        float(items.popularity[row]),
    )


def item_section(shown: Shown, row: int) -> Section:
    """Say where an item stands."""
    items, text = shown.items, shown.table.text(row)
    if not text:
        words = (
            f"{items.title(row)} has no semantic ID in this version: it has no content, or came "
            "later. recsys ids append gives IDs to items with content."
        )
        return Section(key="item", title=items.title(row), blocks=[Words(lines=[words])])
    codes = text.split("-")
    prefixes = ["-".join(codes[: length + 1]) for length in range(len(codes))]
    tiles = [
        Tile(label="semantic ID", value=text),
        Tile(label="main category", value=items.category(row) or "none"),
        Tile(label="popularity", value=f"{items.popularity[row]:,.0f}", note=items.counted),
    ]
    for prefix in prefixes[:-1]:
        low, high = shown.table.bounds(shown.table.prefix_of(prefix))
        count = high - low - 1
        link = shown.link(prefix)
        tiles.append(Tile(label=f"others with {prefix}", value=f"{count:,}", link=link))
    return Section(
        key="item",
        title=items.title(row),
        blocks=[Tiles(tiles=tiles), Words(lines=["Its page:"], links=[shown.item_link(row)])],
    )
