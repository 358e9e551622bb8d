"""The page of a run's semantic IDs: codes, collisions, the tree of prefixes, drift of versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.data.sides import one_run, run_control, suggest_runs
from pipelines.dashboard.data.windows import window_rows
from pipelines.dashboard.query import NotFoundError, Query, QueryError
from pipelines.dashboard.semantic_id_versions import (
    FEATURES,
    STAGE,
    IdVersions,
    find_source,
    has_ids,
    read_ids,
    read_items,
)
from pipelines.engine.artifacts import Manifest
from pipelines.inputs.tensors import CONTENT_FILE
from pipelines.pages.charts import counts, percent, shares, texts
from pipelines.pages.document import (
    Block,
    Cell,
    Control,
    Link,
    LinkedCell,
    Node,
    Option,
    Page,
    Rows,
    Section,
    Table,
    Tile,
    Tiles,
    Tree,
    Window,
    Words,
    select,
    with_origins,
)
from pipelines.pages.semantic_id_drift import drift_section
from pipelines.pages.semantic_id_sections import (
    content_section,
    popularity_section,
    prefix_section,
    tiles,
    usage_section,
)
from pipelines.pages.semantic_ids import answer, notices
from pipelines.semantic_ids.artefact import QUANTIZER
from pipelines.semantic_ids.items import Items
from pipelines.semantic_ids.measure import Collisions, collisions_of, drift_of, measure
from pipelines.semantic_ids.store import FOLDER, SHORT
from pipelines.semantic_ids.table import (
    Group,
    IdTable,
    Prefix,
    children_of,
    most_popular,
    path_to,
    prefix_text,
)
from recsys.semantic_ids.codes import NO_CODE
from recsys.semantic_ids.rq_kmeans import ResidualKMeans
from serving.bundle.semantic_ids import CONTENT_CODES

PAGE, TITLE = "semantic-ids", "Semantic IDs"
EMBEDDED = "embed_items"
HOW_TO = (
    "No run here has semantic IDs. They are made by the stage build_semantic_ids if items have "
    'text: set semantic_ids.method = "rq_kmeans" in the run\'s TOML file and run '
    "recsys run --until build_semantic_ids"
)
BY_CONTENT = (
    "The published codes come from behaviour. By content alone, which is how new items are coded, "
    "these items would share theirs."
)
ENCODED = (
    "Their content was encoded to the same codes; all but one of each were moved to the nearest "
    "free ID."
)
NOT_KEPT = (
    "Codes as encoded are not kept with this version; the page of the run that made it shows them."
)
SUGGESTED = 20
COMPARED = 200_000
"""Items up to which a version is compared with the one before by default."""
MOST_ENCODED = 20_000
"""Items that are encoded while a reader waits; more are not."""
TITLES = 4
"""Titles shown of a group of items with the same codes."""
SHOWN = 24
"""Nodes below the open one; the table has all."""
EXPORTED_TOP, EXPORTED_BELOW, EXPORTED_ITEMS, EXPORTED_ROWS = 16, 6, 50, 25
MEMBER_COLUMNS = [*texts("item", "title", "semantic ID", "main category"), *counts("popularity")]


@dataclass(frozen=True, kw_only=True)
class IdsView:
    """One version of a run's IDs on the page."""

    context: Context
    source: IdVersions
    table: IdTable
    items: Items

    def link(self, prefix: str) -> Link | None:
        """Open a prefix; a file has no other than its own."""
        if self.context.exported:
            return None
        parameters = {"run": self.source.run.key, "version": self.table.version[:SHORT]}
        label = prefix or "all items"
        return Link(label=label, page=PAGE, parameters=parameters | {"prefix": prefix})

    def cell(self, prefix: str) -> Cell | LinkedCell:
        """Write a prefix in a table."""
        link = self.link(prefix)
        return prefix if link is None else LinkedCell(text=prefix, link=link)

    def item_link(self, row: int) -> Link:
        """Open an item's own page."""
        item_id = str(self.items.item_ids[row])
        parameters = {"run": self.source.run.key, "item": item_id}
        return Link(label=item_id, page="items", parameters=parameters)

    def children(self, prefix: Prefix) -> list[Group]:
        """Describe the prefixes one code longer, once."""
        key = ("prefix", self.source.path, self.table.version, prefix)
        return self.context.cache.get(
            key, self.source.files, lambda: children_of(self.table, self.items, prefix)
        )

    def prefix(self, query: Query) -> Prefix:
        """Read the open prefix: the one named, else that of the named item."""
        row = self.items.row_of(query.text("item"))
        try:
            return self.table.prefix_of(
                query.text("prefix") or (self.table.text(row) if row else "")
            )
        except ValueError as error:
            raise QueryError(str(error)) from error


def read_shown(context: Context, query: Query) -> IdsView:
    """Find the run and the version."""
    source = find_source(context, one_run(context, query, has_ids, HOW_TO))
    if not source.versions:
        problems = "; ".join(source.problems)
        raise NotFoundError(f"{source.run.name} has no semantic IDs. {problems or HOW_TO}")
    version = source.named(query.text("version") or source.versions[0])
    items = read_items(context, source)
    table = read_ids(context, source, version)
    return IdsView(context=context, source=source, table=table, items=items)


def build(context: Context, query: Query) -> Page:
    """Build the page."""
    if not query.text("run"):
        try:
            one_run(context, query, has_ids, HOW_TO)
        except NotFoundError as error:
            return Page(title=TITLE, lead=str(error), blocks=[])
    shown = read_shown(context, query)
    source, table, items = shown.source, shown.table, shown.items
    if not len(table.rows):
        words = "No item of this run's catalogue has an ID in this version."
        return Page(title=TITLE, lead=words, blocks=[], controls=_controls(shown, None))
    made = source.report if source.report.get("version") == table.version else {}
    key, files = (source.path, table.version, source.report.get("version")), source.files
    cache = context.cache
    report = cache.get(
        ("id measures", *key), files, lambda: measure(table, items, made, title=source.run.name)
    )
    collided = cache.get(("id collisions", *key), files, lambda: _collisions(shown))
    before = _previous(shown, query)
    drift = None
    if before is not None:
        names = ("id drift", source.path, before.version, table.version)
        drift = cache.get(names, files, lambda: drift_of(before, table, items))
    groups = [
        (
            *(codes, len(rows), "; ".join(items.title(row) for row in rows[:TITLES])),
            ", ".join(table.text(row) for row in rows[:TITLES]),
        )
        for codes, rows in collided.groups
    ]
    blocks: list[Block] = [tiles(report, drift)]
    if wanted := query.text("item"):
        row = items.row_of(wanted)
        missing = Words(lines=[f"No item has the id {wanted!r} in this run."], tone="bad")
        blocks.append(missing if row is None else _item_section(shown, row))
    sections = [
        _walk_section(shown, shown.prefix(query)),
        usage_section(report),
        prefix_section(report, collided, groups),
        content_section(report),
        popularity_section(report, items.counted),
    ]
    if drift is not None:
        most = EXPORTED_ROWS if context.exported else None
        sections.append(drift_section(report, drift, most=most, cell=shown.cell))
    blocks += [with_origins(one, [source.run.origin]) for one in sections]
    return Page(
        title=TITLE,
        lead=answer(report),
        blocks=blocks,
        controls=_controls(shown, before),
        notices=[*source.problems, *notices(report)],
    )


def _collisions(shown: IdsView) -> Collisions:
    """Find groups of equal codes: those kept by the run, else by encoding the content."""
    table, source = shown.table, shown.source
    folder = STAGE if source.run.kind == "workspace" else FOLDER
    kept, words = source.path / folder / CONTENT_CODES, BY_CONTENT
    try:
        if table.version == source.own and kept.exists():
            codes = np.load(kept, allow_pickle=False)
        else:
            codes, words = _encoded(table, source), ENCODED
    except (OSError, ValueError, IndexError) as error:
        return Collisions(words=f"The codes as encoded cannot be read: {error}")
    if isinstance(codes, str):
        return Collisions(words=codes)
    return collisions_of(codes, table.level_sizes[: codes.shape[1]], words)


def _encoded(table: IdTable, source: IdVersions) -> NDArray[np.int32] | str:
    """Encode the content of a workspace's items, or explain why that cannot be."""
    path = source.path
    if source.run.kind != "workspace" or table.version != source.own:
        return NOT_KEPT
    if len(table.rows) > MOST_ENCODED:
        return (
            f"{len(table.rows):,} items are too many to encode while you wait (at most "
            f"{MOST_ENCODED:,}); the sizes of groups above were measured by the run. "
            "recsys ids report shows examples."
        )
    made, features = Manifest.read(path / EMBEDDED), Manifest.read(path / FEATURES)
    if made is None or features is None or made.inputs.get(FEATURES) != features.output:
        return "The content that was encoded is no longer in the workspace."
    quantizer = ResidualKMeans.load(path / STAGE / QUANTIZER)
    vectors = np.load(path / EMBEDDED / CONTENT_FILE, mmap_mode="r", allow_pickle=False)
    rows = np.sort(table.rows)
    content = torch.from_numpy(np.array(vectors[rows, : quantizer.dim], np.float32))
    codes = np.full((len(vectors), len(quantizer.level_sizes)), NO_CODE, np.int32)
    codes[rows] = quantizer.encode(content).numpy()
    return codes


def _previous(shown: IdsView, query: Query) -> IdTable | None:
    """Read the version to compare with: the named one, else the parent, else the one before.

    Two versions of a large catalogue take seconds to read, so they are compared if one is named.
    """
    source, table = shown.source, shown.table
    found = ""
    if named := query.text("previous"):
        found = source.named(named)
    elif len(table.rows) <= COMPARED:
        published = source.published
        found = table.parent if table.parent in published and table.parent else ""
        if not found and table.version in published:
            later = published[published.index(table.version) + 1 :]
            found = later[0] if later else ""
    is_other = found and found != table.version
    return read_ids(shown.context, source, found) if is_other else None


def _controls(shown: IdsView, before: IdTable | None) -> Sequence[Control]:
    if shown.context.exported:
        return []
    source, version = shown.source, shown.table.version[:SHORT]
    versions = {
        one[:SHORT]: f"{one[:SHORT]} (of this run)" if one == source.own else one[:SHORT]
        for one in source.versions
    }
    clears = ("version", "previous", "prefix", "item")
    found = run_control(shown.context, source.run, clears=clears)
    if len(versions) > 1:
        others = {one: label for one, label in versions.items() if one != version}
        other = "" if before is None else before.version[:SHORT]
        choose = {"": "choose a version"} if before is None else {}
        found += [
            select("version", "Version", version, versions, clears=("prefix", "previous")),
            select("previous", "Compared with", other, {**choose, **others}),
        ]
    search = Control(
        name="item",
        label="Find an item (title or id)",
        kind="search",
        suggest="items",
        clears=("prefix",),
    )
    return [*found, search]


def _group_words(group: Group) -> str:
    """Describe a node in a line."""
    parts = ["1 item" if group.num_items == 1 else f"{group.num_items:,} items"]
    if group.category and group.purity is not None and group.num_items > 1:
        parts.append(f"{percent(group.purity)} {group.category}")
    return f"{', '.join(parts)}: {'; '.join(group.titles)}"


def _walk_section(shown: IdsView, prefix: Prefix) -> Section:
    """Show the reader's place in the tree, and the prefixes and items below."""
    below, exported = shown.children(prefix), shown.context.exported
    blocks: list[Block] = [_tree(shown, prefix, below)]
    if len(below) > SHOWN and not exported:
        table = Table(
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
                    *(shown.cell(one.text), one.num_items, one.share, one.category, one.purity),
                    "; ".join(one.titles),
                )
                for one in below
            ],
            page_length=10,
        )
        blocks.append(table)
    if prefix:
        low, high = shown.table.bounds(prefix)
        count = high - low
        some = _member_rows(shown, prefix, Window(length=EXPORTED_ITEMS)).rows if exported else ()
        left = f" The {EXPORTED_ITEMS} most popular." if exported and count > EXPORTED_ITEMS else ""
        members_table = Table(
            key="members",
            title="1 item" if count == 1 else f"{count:,} items of {prefix_text(prefix)}",
            note=f"Popularity: {shown.items.counted}.{left}",
            columns=MEMBER_COLUMNS,
            rows=some,
            source=None if exported else "members",
        )
        blocks.append(members_table)
    return Section(
        key="walk",
        title="Walk the tree",
        note="Items with the same first codes are alike. Each line: items, the commonest main "
        "category and its share (of the items that have one), the most popular titles.",
        blocks=blocks,
    )


def _tree(shown: IdsView, prefix: Prefix, below: Sequence[Group]) -> Tree:
    def node(group: Group, children: Sequence[Node] = ()) -> Node:
        link = shown.link(group.text)
        return Node(label=group.text, note=_group_words(group), link=link, children=children)

    exported = shown.context.exported
    some = below[: EXPORTED_TOP if exported else SHOWN]
    nodes = [
        node(one, [node(child) for child in shown.children(one.prefix)[:EXPORTED_BELOW]])
        if exported
        else node(one)
        for one in some
    ]
    for group in reversed(path_to(shown.table, shown.items, prefix)):
        nodes = [node(group, nodes)]
    note = f"{len(shown.table.rows):,} items with an ID"
    root = Node(label="all", note=note, link=shown.link(""), children=nodes)
    left = len(below) - len(some)
    where = "left out of this file" if exported else "in the table below"
    more = f" {left:,} smaller ones are {where}." if left else ""
    return Tree(
        key="tree",
        title=f"Prefixes of {prefix_text(prefix) or 'the whole catalogue'}",
        note=f"The largest first; open one to see what follows it.{more}",
        nodes=[root],
    )


def _member_rows(shown: IdsView, prefix: Prefix, window: Window) -> Rows:
    """List the items of a prefix, the most popular first."""
    table, items = shown.table, shown.items
    low, high = table.bounds(prefix)
    members = kept = np.sort(table.rows[low:high])
    categories = pl.Series(["", *items.names]).gather(items.categories + 1)
    places = np.zeros(len(items.item_ids))
    places[table.rows] = np.arange(len(table.rows))
    if window.search:
        texts_ = pl.select(
            pl.concat_str(
                items.item_ids, items.titles, categories, separator=" ", ignore_nulls=True
            ).gather(members)
        ).to_series()
        found = texts_.str.to_lowercase().str.contains(window.search.lower(), literal=True)
        kept = members[found.to_numpy()]
    columns = (items.item_ids, items.titles, places, categories, items.popularity)
    chosen = window_rows(kept, columns, window, 4).tolist()
    return Rows(total=high - low, found=len(kept), rows=[_member(shown, row) for row in chosen])


def _member(shown: IdsView, row: int) -> tuple[Cell | LinkedCell, ...]:
    items, link = shown.items, shown.item_link(row)
    return (
        link.label if shown.context.exported else LinkedCell(text=link.label, link=link),
        *(items.title(row), shown.table.text(row), items.category(row)),
        float(items.popularity[row]),
    )


def _item_section(shown: IdsView, row: int) -> Section:
    """Show an item's place in the tree."""
    items, text = shown.items, shown.table.text(row)
    if not text:
        words = (
            f"{items.title(row)} has no semantic ID in this version: it has no content, or came "
            "later. recsys ids append gives IDs to items with content."
        )
        return Section(key="item", title=items.title(row), blocks=[Words(lines=[words])])
    found = [
        Tile(label="semantic ID", value=text),
        Tile(label="main category", value=items.category(row) or "none"),
        Tile(label="popularity", value=f"{items.popularity[row]:,.0f}", note=items.counted),
    ]
    whole = shown.table.prefix_of(text)
    for length in range(1, len(whole)):
        low, high = shown.table.bounds(whole[:length])
        prefix = prefix_text(whole[:length])
        label, link = f"others with {prefix}", shown.link(prefix)
        found.append(Tile(label=label, value=f"{high - low - 1:,}", link=link))
    its_page = Words(lines=["Its page:"], links=[shown.item_link(row)])
    return Section(key="item", title=items.title(row), blocks=[Tiles(tiles=found), its_page])


def suggest_items(context: Context, query: Query, text: str) -> Sequence[Option]:
    """Find items by a part of the title or by id: the id itself, then the most popular."""
    shown = read_shown(context, query)
    items, wanted = shown.items, text.strip()
    if not wanted:
        return []
    lowered = context.tables.get(
        ("lowered titles", shown.source.path), shown.source.files, items.titles.str.to_lowercase
    )
    by_title = lowered.str.contains(wanted.lower(), literal=True)
    inside = by_title | items.item_ids.str.starts_with(wanted)
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
    shown = read_shown(context, query)
    return _member_rows(shown, shown.prefix(query), window)


ENTRY = PageEntry(
    name=PAGE,
    title=TITLE,
    build=build,
    rows={"members": members},
    suggest={"runs": suggest_runs, "items": suggest_items},
    keeps=("run",),
)
